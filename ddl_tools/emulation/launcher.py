"""Launcher of emulated runs: what the leader of the ranks asks for their nodes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddl_core.registry import STRATEGIES
from ddl_tools.emulation import nodes
from ddl_tools.emulation.counters import write_links
from ddl_tools.emulation.link_rates import measured_mbit
from ddl_tools.emulation.nodes import Node, Wiring
from ddl_tools.records.paths import EmulationFiles


@dataclass(frozen=True)
class EmulatedNodes:
    """The nodes of one run; see `ddl_tools.launch.commands.SimulatedNodes`."""

    wiring: Wiring

    def __str__(self) -> str:
        return f"{self.wiring.nodes} emulated nodes"

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node."""
        return self.wiring.ranks_per_node

    def check(self) -> None:
        """Check that this machine can make them."""
        nodes.check_support()

    def build(self) -> list[Node]:
        """Make them; this process becomes their switch."""
        return nodes.build(self.wiring)

    def prepare(self, made: Sequence[Node], logs: Path) -> tuple[str, ...]:
        """Measure the links; return the modules that all ranks import on the cores they share."""
        write_links(EmulationFiles(logs), measured_mbit(made, self.wiring.link_mbit))
        os.environ["DS_ACCELERATOR"] = "cpu"  # else DeepSpeed looks for others
        entry = STRATEGIES[self.wiring.strategy]
        return entry.code.split(":")[0], "ddl_tools.emulation.network", *entry.packages
