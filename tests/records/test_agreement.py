"""Which runs must hold the same weights, and what is said when they do not."""

from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_tools.records.agreement import alarm, groups, statements
from ddl_tools.records.ledger import Entry, entry
from ddl_tools.records.paths import committed
from ddl_tools.records.run import DataInfo, RunRecord, read_record, write_record
from ddl_tools.records.stored import run_dirs

CPU = {"cpu": "Some CPU", "architecture": "x86_64", "device": "cpu", "accelerator": None}
PROVENANCE = {"git_commit": "0123456789", "packages": {"torch": "2.13.0", "horovod": "0.28.1"}}
WEIGHTS, OTHERS = "a" * 64, "b" * 64


def run(weights: str | None = WEIGHTS, system: dict | None = None, **fields: Any) -> RunRecord:
    """Return the record of a completed run: two workers and one repeat, if nothing else is said."""
    spec = RunSpec(**{"strategy": "ddp", "model": "resnet18", "gpus_per_node": 2, **fields})
    record = RunRecord.plan("small", spec, None)
    record.status, record.weights_sha256 = "completed", weights
    record.system, record.provenance = {**CPU, **(system or {})}, PROVENANCE
    record.data = DataInfo(train_images=64, eval_images=None, classes=5, fingerprint="f")
    return record


def ledger_of(tmp_path: Path, *records: RunRecord) -> list[Entry]:
    for record in records:
        write_record(tmp_path / record.run_id, record)
    return [entry(record.spec, tmp_path / record.run_id) for record in records]


def test_what_agrees_is_counted(tmp_path: Path) -> None:
    pairs = [
        run(strategy=name, repeat=repeat, weights=str(repeat) * 64)
        for name in ("ddp", "horovod")
        for repeat in (0, 1)
    ]
    entries = ledger_of(tmp_path, *pairs, run(strategy="ddp", repeat=2))
    assert statements(entries) == ["same weights under all strategies: 2 of 2 groups"]
    assert alarm(entries) == ""


def test_a_framework_that_disagrees_is_named(tmp_path: Path) -> None:
    wrong = run(strategy="horovod", repeat=1, weights=OTHERS)
    right = [run(), run(strategy="horovod"), run(repeat=1), run(strategy="deepspeed", repeat=1)]
    entries = ledger_of(tmp_path, *right, wrong)
    assert statements(entries) == ["same weights under all strategies: 1 of 2 groups"]
    first, machine, *lines = alarm(entries).splitlines()
    assert first == "DIFFERENT WEIGHTS in 1 of 2 groups that must hold the same:"
    assert machine == "  on Some CPU:"
    assert lines[:3] == [
        f"    aaaaaaaa  {right[2].run_id}, commit 0123456",
        f"    aaaaaaaa  {right[3].run_id}, commit 0123456",
        f"    bbbbbbbb  {wrong.run_id}, commit 0123456",
    ]
    assert "run the study again" in " ".join(lines)


def test_an_alarm_names_what_sets_groups_apart(tmp_path: Path) -> None:
    runs = [run(strategy=name, base_lr=lr) for name in ("ddp", "horovod") for lr in (0.1, 0.2)]
    runs[-1].weights_sha256 = OTHERS
    text = alarm(ledger_of(tmp_path, *runs))
    assert f"bbbbbbbb  {runs[-1].run_id} (learning rate 0.2), commit" in text
    assert "learning rate 0.1" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"system": {"cpu": "Another CPU"}},
        {"gpus_per_node": 1},
        {"repeat": 1},
        {"seed": 1},
        {"second_start": True},
        {"gpus_per_node": 1, "accumulation": 2},
        {"strategy": "ddp", "ddp_compression": "fp16"},
        {"strategy": "deepspeed", "deepspeed_zero_stage": 1},
        {"strategy": "ddp", "ddp_bucket_mb": 1},  # of one framework: it has nobody to agree with
    ],
    ids=str,
)
def test_other_work_and_other_machines_are_not_compared(changes: dict[str, Any]) -> None:
    assert groups([run(), run(**{"strategy": "horovod", "weights": OTHERS, **changes})]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"data": None},
        {"provenance": {"packages": {"torch": "2.14.0", "horovod": "0.28.1"}}},
        {"study": "another"},
    ],
)
def test_other_data_torch_and_studies_are_not_compared(changes: dict[str, Any]) -> None:
    other = run(strategy="horovod", weights=OTHERS).model_copy(update=changes)
    assert groups([run(), other]) == []


def test_libraries_are_not_compared_and_promise_nothing() -> None:
    """Each rounds in its own way; within one of them nobody has shown that the last bit agrees."""
    other = {"framework": "tensorflow", "strategy": "horovod", "weights": OTHERS}
    assert groups([run(strategy="horovod"), run(strategy="ddp"), run(**other)])[0].agrees
    assert not groups([run(strategy="ddp"), run(**other)])
    (own,) = groups([run(**other), run(**other | {"strategy": "multiworker"})])
    assert not own.promised


def test_a_package_that_computes_nothing_divides_no_group() -> None:
    other = run(strategy="horovod")
    other.provenance = {"packages": {"torch": "2.13.0"}}  # made before Horovod was built
    assert len(groups([run(), other])) == 1


def test_settings_that_only_cut_messages_leave_the_weights() -> None:
    knobs = run(strategy="horovod", horovod_fusion_mb=1, weights=OTHERS)
    (group,) = groups([run(ddp_bucket_mb=1), run(), knobs])
    assert (group.agrees, len(group.records)) == (False, 3)


def test_runs_that_trained_nothing_hold_nothing_to_compare() -> None:
    loading = [run(strategy=name, weights=None, work="load") for name in ("ddp", "horovod")]
    assert groups(loading) == []


def test_precision_torch_promises_the_same_as_fp32_on_the_cpu() -> None:
    (group,) = groups([run(strategy=name, precision="torch") for name in ("ddp", "horovod")])
    assert group.promised


@pytest.mark.parametrize(
    "changes",
    [
        {"system": {"device": "cuda", "accelerator": "A GPU"}},
        {"gpus_per_node": 3},
        {"nodes": 2, "gpus_per_node": 1},
        {"precision": "bf16"},
        {"compile": True},
        {"clip_grad_norm": 1.0},
    ],
    ids=str,
)
def test_no_alarm_where_no_last_bit_is_promised(tmp_path: Path, changes: dict[str, Any]) -> None:
    runs = [run(**changes), run(strategy="horovod", weights=OTHERS, **changes)]
    entries = ledger_of(tmp_path, *runs)
    (line,) = statements(entries)
    assert line.endswith("not promised (docs/explanation/fairness.md): 0 of 1 group")
    assert alarm(entries) == ""


def test_what_is_not_complete_is_left_out_and_said(tmp_path: Path) -> None:
    open_run = run(strategy="deepspeed", weights=OTHERS)
    open_run.status = "failed"
    entries = ledger_of(tmp_path, run(), run(strategy="horovod"), open_run)
    told = "same weights under all strategies: 1 of 1 group, of what is complete"
    assert statements(entries) == [told]


def test_a_study_that_compares_nothing_says_nothing(tmp_path: Path) -> None:
    alone = run()
    alone.system = alone.provenance = alone.data = None  # as little as a record may have
    entries = ledger_of(tmp_path, alone)
    assert (statements(entries), alarm(entries)) == ([], "")


def test_published_runs_of_all_frameworks_hold_the_same_weights() -> None:
    numbers = {}
    # Kernels that add in random order.
    on_gpus = dict.fromkeys(
        ("one_gpu", "one_gpu_loaders", "vit_one_gpu", "recommend_resnet50_f89579"), 0
    )
    four_ranks = {"vit_laptop": 0}  # each strategy adds in an order of its own
    for study in committed().studies():
        found = groups(map(read_record, run_dirs(study, committed())))
        assert all(one.agrees for one in found if one.promised or study not in on_gpus | four_ranks)
        numbers[study] = sum(one.promised for one in found)
    # Of one framework each.
    alone = dict.fromkeys(
        ("laptop_loaders", "accuracy_laptop", "emulated_delays", "emulated_horovod"), 0
    )
    # Other libraries promise nothing.
    of_torch = {"libraries": 3, "related_mahon2020": 6, "related_malik2018": 3, "sharding": 3}
    emulated = {"emulated_cluster": 3}  # of one node each; more nodes promise nothing
    laptop = run_dirs("laptop", committed())
    repeats = {read_record(folder).spec.repeat for folder in laptop}
    assert numbers.pop("laptop") == 2 * len(repeats)
    assert numbers == {
        "profile_laptop": 6,
        **alone,
        **of_torch,
        **emulated,
        **on_gpus,
        **four_ranks,
    }
