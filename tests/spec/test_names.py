"""What sets runs apart is said in words, and runs that differ are never called the same."""

from typing import Any, Literal, get_args, get_origin

import pytest

from ddl_core.config import RunSpec
from ddl_core.registry import REGISTRIES, STRATEGIES, Entry, title
from ddl_tools.launch.study import find_study
from ddl_tools.names import IN_RUN_ID, following, labels, named, phrase
from ddl_tools.records.identity import REPEATS
from ddl_tools.records.paths import STUDIES
from tests.fields import ALONE, changed


@pytest.mark.parametrize("field", ALONE)
def test_two_runs_that_differ_in_a_field_are_told_apart(field: str) -> None:
    runs = changed(field)
    assert len(set(labels(runs))) == 2
    assert labels(runs, (field,)) == ["", ""]


@pytest.mark.parametrize("study", sorted(path.stem for path in STUDIES.glob("*.yaml")))
def test_every_run_of_every_study_has_a_label_of_its_own(study: str) -> None:
    specs = find_study(study).expand()
    assert len(set(labels(specs))) == len(specs)
    beside_names = [
        (*(spec.model_dump()[name] for name in IN_RUN_ID), label)
        for spec, label in zip(specs, labels(specs, IN_RUN_ID), strict=True)
    ]
    assert len(set(beside_names)) == len(specs)


def test_labels_name_only_what_varies() -> None:
    specs = [RunSpec(local_batch_size=size, base_lr=rate) for size in (16, 64) for rate in (0.1, 1)]
    assert labels(specs) == [
        "batch 16, learning rate 0.1", "batch 16, learning rate 1",
        "batch 64, learning rate 0.1", "batch 64, learning rate 1",
    ]  # fmt: skip
    assert labels([*specs, specs[0].model_copy(update={"repeat": 1})], REPEATS) == [
        *labels(specs), "batch 16, learning rate 0.1",
    ]  # fmt: skip
    assert labels(specs[:1]) == [""]
    assert labels([]) == []


def test_threads_that_follow_from_the_ranks_are_not_told() -> None:
    several = [
        RunSpec(strategy="ddp", gpus_per_node=ranks, cpu_threads=4 // ranks) for ranks in (1, 2, 4)
    ]
    assert following(several) == ["cpu_threads"]
    assert labels(several) == ["ranks per node 1", "ranks per node 2", "ranks per node 4"]
    assert labels(several, ("gpus_per_node",))[0] == "compute threads 4"
    assert all("threads" not in name for name in named(several).values())
    more = several[2].model_copy(update={"cpu_threads": 2})
    assert following([*several, more]) == []
    assert labels([*several, more])[3] == "ranks per node 4, compute threads 2"


def test_data_that_no_file_holds_have_no_format() -> None:
    specs = [RunSpec(loader="synthetic"), RunSpec(), RunSpec(data_format="tfrecord")]
    assert labels(specs) == ["synthetic", "native, folders", "native, TFRecord"]


def test_a_strategy_s_settings_are_told_of_its_own_runs() -> None:
    buckets = [RunSpec(strategy="ddp", ddp_bucket_mb=size) for size in (25, 10)]
    others = [RunSpec(strategy="horovod"), RunSpec(strategy="ddp", ddp_bucket_view=True)]
    assert labels([*buckets, others[0]]) == [
        "PyTorch-DDP, bucket 25 MiB", "PyTorch-DDP, bucket 10 MiB", "Horovod",
    ]  # fmt: skip
    assert labels([*buckets, *others]) == [
        "PyTorch-DDP, default settings",
        "PyTorch-DDP, bucket 10 MiB",
        "Horovod",
        "PyTorch-DDP, bucket view",
    ]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("pin_memory", False, "no pinned memory"),
        ("loader", "dali_gpu", "DALI (GPU)"),
        ("model", "unheard_of", "unheard_of"),
        ("precision", "torch", "TF32 in convolutions"),
        ("data_format", "folder", "folders"),
        ("train_images", None, "all training images"),
        ("train_images", 1_281_167, "training images 1281167"),
        ("base_lr", 0.1234567891, "learning rate 0.1234567891"),
        ("deepspeed_zero_stage", 2, "ZeRO stage 2"),
        ("deepspeed_bucket_elements", 1000, "bucket 1000 numbers"),
    ],
)
def test_values_are_said_in_words(field: str, value: Any, words: str) -> None:
    assert phrase(field, value) == words


def test_a_setting_of_a_new_framework_is_said_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(STRATEGIES, "manual", Entry("manual:Manual", "by hand"))
    assert phrase("manual_bucket_mb", 1.0) == "bucket 1 MiB"
    assert labels([RunSpec(strategy="manual"), RunSpec(strategy="ddp")]) == [
        "by hand", "PyTorch-DDP",
    ]  # fmt: skip


def test_no_two_names_are_called_the_same() -> None:
    for kind, known in REGISTRIES.items():
        assert len({title(kind, name) for name in known}) == len(known)
    choices = {
        name: get_args(field.annotation)
        for name, field in RunSpec.model_fields.items()
        if get_origin(field.annotation) is Literal
    }
    for name, values in choices.items():
        assert len({phrase(name, value) for value in values}) == len(values)
