"""Invented records of emulated runs."""

from pathlib import Path
from typing import Any

from ddl_tools.records.run import EMULATION, Emulation
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row
from tests.fields import EMULATED

IMAGES = 320  # of a rank in an epoch


def facts(**changes: Any) -> dict[str, Any]:
    """Return what a record tells of a faithful emulated run."""
    known: dict[str, Any] = {
        "cores": 2,
        "link_mbit_least": 50.0,
        "link_mbit_most": 50.0,
        "steps": 4,
        "gradient_bytes": 1_597_316,
        "sent_bytes_least": 1.6e6,
        "sent_bytes_most": 1.6e6,
        "own_cpu_share": 0.1,
        "other_cpu_share": 0.0,
        "late_share": 0.0,
        "slowest_factor": 1.0,
    }
    return Emulation(**known | changes).model_dump()


def emulate(make_run: MakeRun, efficiency: float = 1.0, nodes: int = 1, **fields: Any) -> Path:
    """Write an emulated run whose epochs take 10 s / `efficiency`."""
    wall_s, unfaithful = 10.0 / efficiency, fields.pop("unfaithful", [])
    rows = [epoch_row(epoch, wall_s=wall_s, samples=IMAGES * nodes) for epoch in (0, 1)]
    known = {"study": "emulation", "system": MACHINE | {EMULATION: facts(unfaithful=unfaithful)}}
    asked = {**EMULATED, "epochs": 2, "nodes": nodes, "train_images": IMAGES * nodes}
    return make_run(rows=rows, **known | asked | {"eval_images": None} | fields)
