"""Invented records of emulated runs."""

from pathlib import Path
from typing import Any

from ddl_core.config import RunSpec, run_fields
from ddl_tools.emulation.validity import sent_bytes
from ddl_tools.records.run import EMULATION, Emulation
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row
from tests.fields import EMULATED

IMAGES = 320  # of a rank in an epoch


def facts(spec: RunSpec, **changes: Any) -> dict[str, Any]:
    """Return what the record of a faithful emulated run tells."""
    link = spec.emu_link_mbit
    known: dict[str, Any] = {
        "cores": 2,
        "link_mbit_least": 0.98 * min(link, spec.emu_uplink_mbit or link),
        "link_mbit_most": link,
        "steps": 4,
        "gradient_bytes": 1_597_316,
        "sent_bytes_least": 0.0,
        "sent_bytes_most": 0.0,
        "own_cpu_share": 0.1,
        "other_cpu_share": 0.0,
        "late_share": 0.0,
        "slowest_factor": 1.0,
    }
    found = Emulation(**known | changes)
    sent = sent_bytes(spec, found)
    return found.model_dump() | {"sent_bytes_least": sent, "sent_bytes_most": sent}


def emulate(
    make_run: MakeRun,
    efficiency: float = 1.0,
    nodes: int = 1,
    other_cpu_share: float = 0.0,
    **fields: Any,
) -> Path:
    """Write an emulated run whose epochs take 10 s / `efficiency`."""
    wall_s = 10.0 / efficiency
    rows = [epoch_row(epoch, wall_s=wall_s, samples=IMAGES * nodes) for epoch in (0, 1)]
    asked = {**EMULATED, "epochs": 2, "nodes": nodes, "train_images": IMAGES * nodes, **fields}
    own = {name: value for name, value in asked.items() if name in run_fields()}
    system = MACHINE | {EMULATION: facts(RunSpec(**own), other_cpu_share=other_cpu_share)}
    known = {"study": "emulation", "system": system, "eval_images": None}
    return make_run(rows=rows, **known | asked)
