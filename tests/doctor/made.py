"""Records of probes that never were: what a judge makes of them must follow from them alone."""

from typing import Any

from ddl_core.config import RunSpec
from ddl_tools.doctor.finding import Finding
from ddl_tools.doctor.judge import judge
from ddl_tools.records.paths import results
from ddl_tools.records.probe import Answer, Collective, Interface, ProbeRecord, Reading

LOOPBACK = Interface(name="lo", addresses=["127.0.0.1"], speed_mbit_per_s=None)
ETHERNET = Interface(name="eth0", addresses=["10.0.0.1"], speed_mbit_per_s=1000)
INFINIBAND = Interface(name="ib0", addresses=["10.1.0.1"], speed_mbit_per_s=100_000)
READING = Reading(
    images=100, bytes=10_000_000, threads=2, cold_s=0.1, warm_s=0.05, decode_s=0.4, decoded=40,
    shards=None,
)  # fmt: skip


def size(number: int, seconds: float) -> Collective:
    """One message size that took always the same time."""
    return Collective(
        bytes=number, operations=5, seconds=seconds, seconds_min=seconds, seconds_max=seconds
    )


def answer(rank: int = 0, **changes: Any) -> Answer:
    """A healthy rank: two cores of its own, loader processes on them, everything free."""
    cores = [2 * rank, 2 * rank + 1]
    return Answer.model_validate(
        {
            "rank": rank,
            "local_rank": rank,
            "host": "node1",
            "step": "done",
            "cores": cores,
            "loader_cores": [cores],
            "visible": {},
            "device": {"device": "cpu", "accelerator": None},
            "wanted_interfaces": {},
            "interfaces": [LOOPBACK, ETHERNET],
            "used_interfaces": ["eth0"],
            "shared_memory_bytes": 10**10,
            "open_files": (20000, 20000),
            "caches": [],
            "reading": READING,
            "all_reduce": [size(1024, 1e-4), size(2**20, 1e-3)] if rank == 0 else [],
            "sum_is_right": True,
            **changes,
        }
    )


def record(*answers: Answer, **changes: Any) -> ProbeRecord:
    """A completed probe of one loader process per rank."""
    spec = {"strategy": "ddp", "gpus_per_node": len(answers) or 2, "loader_workers": 1}
    return ProbeRecord.model_validate(
        {
            "name": "made-1x2-20260101T000000",
            "site": None,
            "spec": RunSpec.parse(spec | changes.pop("spec", {})),
            "status": "completed",
            "data_dir": "data",
            "answers": list(answers),
            **changes,
        }
    )


def judged(probe: ProbeRecord) -> dict[str, Finding]:
    return {one.subject: one for one in judge(probe, results().probes / probe.name)}
