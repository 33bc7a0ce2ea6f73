"""Rules of emulated runs: a faithful run keeps all, and each fault is named."""

from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import RecordError
from ddl_tools.emulation import validity
from ddl_tools.emulation.counters import EpochCounters, write_counters, write_links
from ddl_tools.emulation.validity import broken_rules, sent_bytes
from ddl_tools.launch.study import doubts
from ddl_tools.records.paths import EmulationFiles
from ddl_tools.records.run import EMULATION, Emulation, RunRecord
from tests.fields import EMULATED

BYTES = 1_600_000


def spec(**fields: Any) -> RunSpec:
    return RunSpec(**{**EMULATED, "nodes": 4, **fields})


def facts(**changes: Any) -> Emulation:
    """Return those of a faithful run of four ranks with DDP."""
    sent = 2 * 3 / 4 * BYTES * 1.01
    known: dict[str, Any] = {
        "cores": 2,
        "link_mbit_least": 99.5,
        "link_mbit_most": 100.2,
        "steps": 8,
        "gradient_bytes": BYTES,
        "sent_bytes_least": sent,
        "sent_bytes_most": sent,
        "own_cpu_share": 0.1,
        "other_cpu_share": 0.05,
        "late_share": 0.001,
        "slowest_factor": 1.0,
    }
    return Emulation(**known | changes)


def test_a_faithful_run_breaks_no_rule() -> None:
    assert broken_rules(spec(), facts()) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            {"own_cpu_share": 0.31},
            "the cores were busy for a share of 0.360, more than 0.25: 0.310",
        ),
        ({"other_cpu_share": 0.5}, "the cores were busy for a share of 0.600"),
        ({"other_cpu_share": 0.16}, "the cores were busy for a share of 0.260"),  # each is below
        ({"late_share": 0.02}, "the end of a step was late by 0.020 of it"),
        ({"link_mbit_least": 90}, "links carried 90 to 100 Mbit/s, more than 5% off 100"),
        ({"link_mbit_least": None}, "the rate of the links was not measured"),
        ({"sent_bytes_most": 2.6e6}, "links sent 2.424e+06 to 2.6e+06 bytes a step, theory is"),
    ],
)
def test_a_fault_is_the_only_rule_named(fault: dict[str, Any], said: str) -> None:
    (reason,) = broken_rules(spec(), facts(**fault))
    assert reason.startswith(said)


def test_the_bytes_of_each_framework() -> None:
    """Of 4 ranks: as counted by the kernel in the trial, docs/explanation/emulation.md."""
    ring = 1.5 * BYTES
    assert sent_bytes(spec(), facts()) == ring
    sharded = {"strategy": "deepspeed", "deepspeed_zero_stage": 1}
    assert sent_bytes(spec(**sharded), facts()) == 1.5 * ring
    assert sent_bytes(spec(ddp_compression="fp16"), facts()) == ring / 2
    assert sent_bytes(spec(nodes=2, gpus_per_node=2), facts()) == ring
    assert sent_bytes(spec(nodes=1, gpus_per_node=4), facts()) == 0


def test_horovod_may_also_negotiate_but_not_without_end() -> None:
    for cycle_ms, allowed in ((1000, False), (20, True)):
        asked = spec(strategy="horovod", horovod_cycle_ms=cycle_ms)
        more = 1.5 * BYTES * 1.06
        found = broken_rules(asked, facts(sent_bytes_least=more, sent_bytes_most=more))
        assert (found == []) == allowed


@pytest.mark.parametrize(("nodes", "allowed"), [(2, False), (8, True)])
def test_horovod_negotiates_with_each_other_rank(nodes: int, allowed: bool) -> None:
    """As counted by the kernel on 8 nodes: 7 kB in each of 105 cycles."""
    asked = spec(strategy="horovod", nodes=nodes, emu_step_ms=10_000, horovod_cycle_ms=96)
    sent = 2 * (nodes - 1) / nodes * BYTES * 1.02 + 105 * 7_000
    found = broken_rules(asked, facts(sent_bytes_least=sent, sent_bytes_most=sent))
    assert (found == []) == allowed


def test_small_buckets_of_ddp_have_more_headers() -> None:
    """As counted by the kernel: 64 times smaller buckets of 1 MiB, of ResNet50 on 4 nodes."""
    sent = facts(gradient_bytes=1_597_316, sent_bytes_least=2.54e6, sent_bytes_most=2.56e6)
    assert broken_rules(spec(ddp_bucket_mb=1 / 64), sent) == []
    (reason,) = broken_rules(spec(ddp_bucket_mb=25 / 64), sent)
    assert reason.startswith("links sent")


@pytest.mark.parametrize(("least", "fine"), [(12, True), (19.8, True), (40, False)])
def test_an_uplink_slows_who_crosses_it_or_is_at_fault(least: float, fine: bool) -> None:
    found = facts(link_mbit_least=least)
    assert (broken_rules(spec(emu_uplink_mbit=20), found) == []) == fine
    assert broken_rules(spec(), found) != []


@pytest.fixture
def files(tmp_path: Path) -> EmulationFiles:
    found = EmulationFiles(tmp_path)
    write_links(found, [99.0, 101.0])
    return found


def note(files: EmulationFiles, rank: int, **changes: Any) -> None:
    known: dict[str, Any] = {
        "epoch": 1,
        "cold": False,
        "wall_s": 4.0,
        "cpu_s": 0.4,
        "machine_cpu_s": 1.4,
        "cores": 2,
        "sent_bytes": 4 * BYTES,
        "gradient_bytes": BYTES,
        "factors": [1.0, 1.2, 1.0, 1.0],
        "late_s": [0.001, 0.001, 0.001, 0.005],
    }
    write_counters(files, rank, EpochCounters(**known | changes))


def test_facts_are_of_warm_epochs_over_all_ranks(files: EmulationFiles) -> None:
    note(files, 0, epoch=0, cold=True, cpu_s=99)
    note(files, 0)
    note(files, 0, epoch=2)
    note(files, 1, cpu_s=0.8, factors=[1.1, 1.0, 1.0, 1.0], late_s=[0.0] * 4)
    note(files, 1, epoch=2, sent_bytes=4 * BYTES + 8000, late_s=[0.1, 0, 0, 0])
    found = validity.read(files, spec(nodes=2))
    assert (found.steps, found.link_mbit_least, found.link_mbit_most) == (8, 99, 101)
    assert found.own_cpu_share == pytest.approx((0.4 + 0.4 + 0.8 + 0.4) / 8 / 2)
    assert found.other_cpu_share == pytest.approx((2.8 - 2.0) / 8 / 2)
    assert (found.sent_bytes_least, found.sent_bytes_most) == (BYTES, BYTES + 1000)
    assert found.late_share == pytest.approx(0.1 / 8)
    assert found.slowest_factor == pytest.approx((1.1 + 1.2 + 2 + 1 + 1.2 + 2) / 8)
    (reason,) = found.unfaithful
    assert reason.startswith("the end of a step was late by 0.01")


def test_a_rank_that_noted_nothing_is_named(files: EmulationFiles) -> None:
    note(files, 0)
    with pytest.raises(RecordError, match=r"rank_1\.jsonl"):
        validity.read(files, spec(nodes=2))


def test_rejected_runs_are_named_and_counted() -> None:
    """By the rules as they are now, whatever a record says of those when it was measured."""
    records = []
    for repeat, late in enumerate((0.001, 0.02, 0.03)):
        record = RunRecord.plan("emulation", spec(repeat=repeat))
        record.status = "completed"
        record.system = {EMULATION: facts(late_share=late, unfaithful=["old rule"]).model_dump()}
        records.append(record)
    measured = RunRecord.plan("emulation", RunSpec())
    (line,) = doubts([*records, measured])
    assert line.startswith("rejected, and drawn nowhere: 2 of 3 emulated runs, e.g. ddp-syn")
    assert f"{records[1].run_id}: the end of a step was late by 0.020 of it" in line
    assert doubts([records[0], measured]) == []
