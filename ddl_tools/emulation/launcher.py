"""Nodes of an emulated run, as launcher, ranks and readers of its record ask for them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddl_core.config import RunSpec
from ddl_core.registry import STRATEGIES
from ddl_tools.emulation import nodes, validity
from ddl_tools.emulation.counters import RankCounters, write_links
from ddl_tools.emulation.link_rates import measured_mbit
from ddl_tools.emulation.nodes import Node, Wiring
from ddl_tools.emulation.options import Emulated
from ddl_tools.records.paths import EmulationFiles
from ddl_tools.records.run import Emulation


@dataclass(frozen=True)
class EmulatedNodes:
    """The nodes of one run; see `ddl_tools.launch.commands.SimulatedNodes`."""

    run: RunSpec

    def __str__(self) -> str:
        return f"{self.run.nodes} emulated nodes"

    @property
    def wiring(self) -> Wiring:
        """Nodes, their ranks and links."""
        asked, run = self.run.of(Emulated), self.run
        links = asked.emu_link_mbit, asked.emu_uplink_mbit
        return Wiring(run.strategy, run.nodes, run.gpus_per_node, *links)

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node."""
        return self.run.gpus_per_node

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
        entry = STRATEGIES[self.run.strategy]
        return entry.code.split(":")[0], "ddl_tools.emulation.network", *entry.packages

    def counters(self, logs: Path) -> RankCounters:
        """Return what counts the epochs of this rank."""
        return RankCounters(self.run, EmulationFiles(logs))

    def facts(self, logs: Path) -> Emulation | None:
        """Return what the ranks have counted in measured epochs; None where no epoch counts."""
        return validity.read(EmulationFiles(logs), self.run)

    def broken_rules(self, facts: Emulation | None) -> list[str]:
        """Return why the times of the run do not count."""
        return validity.broken_rules(self.run, facts) if facts else ["no epoch counts"]
