"""What sets runs apart is said in words, and runs that differ are never called the same."""

from typing import Any, Literal, get_args, get_origin

import pytest

from ddl_core.config import RunSpec, run_fields
from ddl_core.registry import REGISTRIES, STRATEGIES, Entry, title
from ddl_tools.launch.study import find_study
from ddl_tools.names import IN_RUN_ID, common, distinguish, following, label, named, phrase
from ddl_tools.records.identity import REPEATS
from ddl_tools.records.paths import STUDIES
from tests.fields import ALONE, changed


@pytest.mark.parametrize("field", ALONE)
def test_two_runs_that_differ_in_a_field_are_told_apart(field: str) -> None:
    runs = changed(field)
    assert len(set(label(runs))) == 2
    assert label(runs, (field,)) == ["", ""]


@pytest.mark.parametrize("study", sorted(path.stem for path in STUDIES.glob("*.yaml")))
def test_every_run_of_every_study_has_a_label_of_its_own(study: str) -> None:
    specs = find_study(study).expand()
    assert len(set(label(specs))) == len(specs)
    beside_names = [
        (*(spec.model_dump()[name] for name in IN_RUN_ID), label)
        for spec, label in zip(specs, label(specs, IN_RUN_ID), strict=True)
    ]
    assert len(set(beside_names)) == len(specs)


def test_label_name_only_what_varies() -> None:
    specs = [RunSpec(local_batch_size=size, base_lr=rate) for size in (16, 64) for rate in (0.1, 1)]
    assert label(specs) == [
        "batch 16, learning rate 0.1", "batch 16, learning rate 1",
        "batch 64, learning rate 0.1", "batch 64, learning rate 1",
    ]  # fmt: skip
    assert label([*specs, specs[0].model_copy(update={"repeat": 1})], REPEATS) == [
        *label(specs), "batch 16, learning rate 0.1",
    ]  # fmt: skip
    assert label(specs[:1]) == [""]
    assert label([]) == []


def test_what_is_off_is_named_only_where_nothing_else_is() -> None:
    plain = RunSpec(strategy="ddp", gpus_per_node=2)
    compiled = plain.model_copy(update={"compile": True})
    viewed = plain.model_copy(update={"ddp_bucket_view": True})
    assert label([plain, compiled]) == ["no torch.compile", "torch.compile"]
    assert label([plain, compiled, viewed, RunSpec()]) == [
        "PyTorch-DDP, 2 ranks", "PyTorch-DDP, torch.compile, 2 ranks",
        "PyTorch-DDP, bucket view, 2 ranks", "single process, 1 rank",
    ]  # fmt: skip


def test_threads_that_follow_from_the_ranks_are_not_told() -> None:
    several = [
        RunSpec(strategy="ddp", gpus_per_node=ranks, cpu_threads=4 // ranks) for ranks in (1, 2, 4)
    ]
    assert following(list(map(dict, several))) == ["cpu_threads"]
    assert label(several) == ["1 rank", "2 ranks", "4 ranks"]
    assert label(several, ("gpus_per_node",))[0] == "compute threads 4"
    assert all("threads" not in name for name in named(several).values())
    more = several[2].model_copy(update={"cpu_threads": 2})
    assert following(list(map(dict, [*several, more]))) == []
    assert label([*several, more])[3] == "compute threads 2, 4 ranks"


def test_data_that_no_file_holds_have_no_format() -> None:
    specs = [RunSpec(loader="synthetic"), RunSpec(), RunSpec(data_format="tfrecord")]
    assert label(specs) == ["synthetic", "native, folders", "native, TFRecord"]


def test_a_strategy_s_settings_are_told_of_its_own_runs() -> None:
    buckets = [RunSpec(strategy="ddp", ddp_bucket_mb=size) for size in (25, 10)]
    others = [RunSpec(strategy="horovod"), RunSpec(strategy="ddp", ddp_bucket_view=True)]
    assert label([*buckets, others[0]]) == [
        "PyTorch-DDP, bucket 25 MiB", "PyTorch-DDP, bucket 10 MiB", "Horovod",
    ]  # fmt: skip
    assert label([*buckets, *others]) == [
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
        ("deepspeed_bucket_elements", 1000, "bucket 1000 elements"),
        ("deepspeed_bucket_elements", 5_000_000, "bucket 5M elements"),
    ],
)
def test_values_are_said_in_words(field: str, value: Any, words: str) -> None:
    assert phrase(field, value) == words


def test_a_setting_of_a_new_framework_is_said_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(STRATEGIES, "manual", Entry("manual:Manual", "by hand"))
    assert phrase("manual_bucket_mb", 1.0) == "bucket 1 MiB"
    assert label([RunSpec(strategy="manual"), RunSpec(strategy="ddp")]) == [
        "by hand", "PyTorch-DDP",
    ]  # fmt: skip


def test_no_two_names_are_called_the_same() -> None:
    for kind, known in REGISTRIES.items():
        assert len({title(kind, name) for name in known}) == len(known)
    choices = {
        name: get_args(field.annotation)
        for name, field in run_fields().items()
        if get_origin(field.annotation) is Literal
    }
    for name, values in choices.items():
        assert len({phrase(name, value) for value in values}) == len(values)


def test_the_size_of_a_run_is_its_ranks_and_nodes() -> None:
    sizes = [RunSpec(strategy="ddp", nodes=nodes, gpus_per_node=2 // nodes) for nodes in (1, 2)]
    assert label(sizes) == ["2 ranks on 1 node", "2 ranks on 2 nodes"]
    assert label(sizes, ("nodes",)) == ["2 ranks per node", "1 rank per node"]
    assert label(sizes, ("gpus_per_node",)) == ["1 node", "2 nodes"]
    shared = ["loader", "gpus_per_node", "image_size"]
    assert common(list(map(dict, sizes)), shared) == "native, 224 px"
    assert common([dict(sizes[1])], shared) == "native, 2 ranks on 2 nodes, 224 px"


def test_rows_without_a_strategy_name_it_before_its_settings() -> None:
    rows = [{"image_size": 96, "ddp_bucket_mb": size} for size in (25.0, 10.0)]
    assert label(rows) == ["", "PyTorch-DDP bucket 10 MiB"]


def test_facts_are_named_unless_they_follow_from_the_hardware() -> None:
    one = {"hardware": "GPU A", "memory_gib": 24, "software": "python 3.11; torch 2.13"}
    other = {"hardware": "GPU B", "memory_gib": 48, "software": "python 3.11; torch 2.14"}
    assert label([one, other]) == ["GPU A", "GPU B"]
    newer = one | {"software": "python 3.11; torch 2.14"}
    assert label([one, newer]) == ["torch 2.13", "torch 2.14"]
    assert label([one, newer | {"memory_gib": None}]) == [
        "memory 24 GiB, torch 2.13", "torch 2.14, unknown memory",
    ]  # fmt: skip


def test_equal_labels_are_followed_by_what_differs_in_facts() -> None:
    facts = ["a 1; b 1", "a 1; b 1; c 1", "a 2"]
    assert distinguish(["same", "same", "other"], facts) == [
        "same (no more)",
        "same (c 1)",
        "other",
    ]


@pytest.mark.parametrize(
    ("commands", "labels"),
    [
        (("python t.py --batch 8", "python t.py --batch 16"), ["batch 8", "batch 16"]),
        (("a.py --amp -b 8", "a.py -b 8"), ["amp", "a.py -b 8"]),
        (("a.py 8", "b.py 8"), ["a.py", "b.py"]),
    ],
)
def test_commands_are_named_by_what_differs(commands: tuple[str, ...], labels: list[str]) -> None:
    runs = [RunSpec(framework="command", command=one) for one in commands]
    assert label(runs) == labels


def test_the_loader_of_a_command_is_named_where_it_repeats_a_batch() -> None:
    command = {"framework": "command", "command": "a.py"}
    own, first = RunSpec(**command), RunSpec(**command, loader="synthetic")
    assert label([own, first]) == ["own loader", "first batch"]
    assert common([dict(own)], ("strategy", "loader")) == "single process, own loader"


def test_a_run_without_a_command_does_not_speak_of_one() -> None:
    ours, own = RunSpec(), RunSpec(framework="command", command="a.py")
    assert common([dict(ours)], ("command", "precision")) == phrase("precision", ours.precision)
    assert label([ours, own]) == ["PyTorch", "command, a.py"]
