"""RunSpec and Study: derived values, names, errors that help."""

import os
import time
from pathlib import Path

import pytest
import yaml

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.study import Study, YamlLoader

POWERSGD = {"strategy": "ddp", "gpus_per_node": 2, "ddp_compression": "powersgd"}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_sizes_follow_from_workers_and_accumulation():
    spec = RunSpec(strategy="ddp", nodes=2, gpus_per_node=4, accumulation=3, local_batch_size=16)
    assert (spec.world_size, spec.virtual_workers, spec.global_batch_size) == (8, 24, 384)


def test_run_id_is_readable_and_depends_on_changed_fields_only():
    default = RunSpec()
    assert default.run_id.startswith("single-native-resnet50-1x1-r0-")
    assert RunSpec(epochs=90).run_id == default.run_id
    assert RunSpec(epochs=91).run_id != default.run_id
    # Pinned: a published run keeps its name whatever fields are added later.
    assert default.run_id == "single-native-resnet50-1x1-r0-44136fa3"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strategy": "dpp"}, ["strategy", "'dpp'", "did you mean ddp"]),
        ({"loader": "x"}, ["loader", "'x'", "native", "synthetic"]),
        ({"model": "resnet51"}, ["model", "'resnet51'", "resnet50"]),
        ({"batch": 3}, ["batch", "unknown field", "local_batch_size"]),
        ({"gpus": 2}, ["gpus = 2: unknown field", "did you mean gpus_per_node?"]),
        ({"epoch": 2}, ["epoch = 2: unknown field", "did you mean epochs"]),
        ({"qqq": 2}, ["qqq = 2: unknown field", "accumulation, ", "weight_decay"]),
        ({"local_batch_size": 0}, ["local_batch_size", "0", "greater than 0"]),
        ({"precision": "fp8"}, ["precision", "'fp8'", "bf16"]),
        ({"precision": "torch", "framework": "keras"}, ["precision = 'torch'", "leave it out"]),
        ({"base_lr": float("nan")}, ["base_lr", "nan"]),
        ({"strategy": "single", "gpus_per_node": 2}, ["single", "= 2", "ddp"]),
        ({"strategy": "single", "ddp_bucket_mb": 1}, ["ddp_bucket_mb", "'ddp'", "'single'"]),
        ({"nesterov": True, "optimizer": "lamb"}, ["nesterov = true", "'lamb'", "'sgd'"]),
        ({"nesterov": True, "momentum": 0.0}, ["nesterov = true", "momentum = 0.0"]),
        ({"precise_bn": True, "eval_every": 0}, ["precise_bn = true", "set eval_every"]),
        ({"precise_bn": True, "work": "load"}, ["precise_bn = true", "leave it out"]),
        ({"precise_bn": True, "compile": True}, ["precise_bn = true", "compile = false"]),
        ({"precise_bn": True, "framework": "keras"}, ["precise_bn = true", "leave it out"]),
        (POWERSGD, ["'powersgd'", "checkpoint_every = 1", "set checkpoint_every to 0"]),
        ({**POWERSGD, "precision": "fp16"}, ["'powersgd' with precision = 'fp16'", "'bf16'"]),
        ({"strategy": "ddp", "ddp_powersgd_rank": 3}, ["ddp_powersgd_rank = 3", "'powersgd'"]),
        ({"strategy": "ddp", "ddp_powersgd_start": 3}, ["ddp_powersgd_start = 3", "'powersgd'"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(fields, words):
    with pytest.raises(SpecError) as caught:
        RunSpec.parse(fields)
    for word in words:
        assert word in str(caught.value)


def test_a_study_is_the_union_of_its_grids_repeat_by_repeat():
    study = Study(
        name="s",
        question="?",
        base={"epochs": 2},
        axes=[{"strategy": ["single"]}, {"strategy": ["ddp"], "gpus_per_node": [1, 2]}],
        repeats=2,
    )
    runs = [(run.repeat, run.strategy, run.gpus_per_node) for run in study.expand()]
    one = [("single", 1), ("ddp", 1), ("ddp", 2)]
    assert runs == [(repeat, *arm) for repeat in (0, 1) for arm in one]
    assert len({run.run_id for run in study.expand()}) == len(runs)


def test_a_grid_may_add_repeats_to_some_configurations():
    axes = [{"epochs": [1, 2]}, {"epochs": [2], "repeat": [2, 3]}]
    study = Study(name="s", question="?", axes=axes, repeats=2)
    runs = [(run.repeat, run.epochs) for run in study.expand()]
    assert runs == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (3, 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: {modle: resnet50}", ["base", "'modle'", "model"]),
        ("axes: {loader: []}", ["axes.loader", "empty"]),
        ("axes: {loader: [x]}", ["loader", "'x'", "native"]),
        ("foo: 1", ["foo", "unknown field", "axes"]),
        ("axes: {seed: [1]}", ["seed", "repeats"]),
        ("axes: {repeat: [1]}\ninterleave: {reference: {}}", ["repeat is set by `repeats`"]),
        ("base: {epochs: 1}\naxes: {epochs: [2]}", ["epochs", "both"]),
        ("axes: [{epochs: [1]}, {epochs: [1, 2]}]", ["two grids", "single-native-resnet50-1x1-r0"]),
        ("axes: []", ["axes"]),
        ("axes: {epochs: [1, 2, 2]}", ["names a value twice"]),
        ("repeats: 100000000", ["repeats = 100000000"]),
        ("repeats: 5000\naxes: {nodes: [1, 2, 3]}", ["15,000 runs; a study may have 10,000"]),
        ("question: again", ["'question' is there twice"]),
        (f"axes: [{', '.join(f'x{n}' for n in range(1000))}]", ["and 980 more"]),
    ],
)
def test_a_wrong_study_says_where_and_what(tmp_path, text, words):
    with pytest.raises(SpecError) as caught:
        Study.load(write(tmp_path, f"name: s\nquestion: q\n{text}"))
    for word in [*words, "study.yaml"]:
        assert word in str(caught.value)


FAULTY = """
titel: Which is faster?
base: {gpus: 2, precision: fp8}
axes:
  - {strategy: [ddp, dpp], epoch: [2]}
  - {loader: [], local_batch_size: [0]}
interleave: {reference: {stratgy: ddp}}
"""
EACH = [
    *("question:", "titel =", "gpus_per_node", "precision = 'fp8'", "'dpp'", "did you mean epochs"),
    *("axes.loader", "local_batch_size = 0", "'stratgy'"),
]


def test_all_faults_of_a_study_are_reported_at_once(tmp_path):
    with pytest.raises(SpecError) as caught:
        Study.load(write(tmp_path, f"name: s{FAULTY}"))
    lines = str(caught.value).splitlines()
    assert all(sum(word in line for line in lines) == 1 for word in EACH)
    assert len(lines) == 1 + len(EACH)  # the file


def test_faults_of_all_runs_are_reported_each_once(tmp_path):
    text = "base: {epochs: 0}\naxes: {strategy: [ddp, dpp, hvd], gpus_per_node: [1, 2]}"
    with pytest.raises(SpecError) as caught:
        Study.load(write(tmp_path, f"name: s\nquestion: q\n{text}"))
    for words in ("epochs = 0", "'dpp'", "'hvd'"):
        assert sum(words in line for line in str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", "not a valid study file"),
        ("- 1", "valid dictionary"),
        (None, "cannot read the study"),
    ],
)
def test_a_file_that_holds_no_study_is_named(tmp_path, text, words):
    path = tmp_path / "none.yaml" if text is None else write(tmp_path, text)
    with pytest.raises(SpecError, match=words):
        Study.load(path)


def test_powersgd_without_checkpoints_is_allowed() -> None:
    RunSpec.parse({**POWERSGD, "checkpoint_every": 0, "ddp_powersgd_rank": 4})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"epochs": True}, "epochs = True: Input should be a valid integer"),
        ({"nodes": 10**9}, "nodes = 1000000000: Input should be less than or equal to 100000"),
        ({"base_lr": 1e300}, r"base_lr = 1e\+300"),
        ({"model": "x" * 100_000}, r"model = 'x+\.\.\.x+'"),
    ],
)
def test_a_value_out_of_all_proportion_is_refused_in_few_words(fields, words):
    with pytest.raises(SpecError, match=words) as caught:
        RunSpec.parse(fields)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("5e-4", 5e-4),
        ("-3", -3),
        ("1:30", "1:30"),
        ("no", "no"),
        ("true", True),
        ("2026-01-01", "2026-01-01"),
        ("null", None),
        ("", None),
    ],
)
def test_plain_values_are_those_of_yaml_1_2(text, value):
    assert yaml.load(f"a: {text}", YamlLoader) == {"a": value}


@pytest.mark.parametrize("key", ["<<", "!!merge <<", "!!merge x"])
def test_merge_keys_are_refused_before_they_multiply(tmp_path, key):
    lines = ["l0: &l0 {a: 1}"]
    lines += [f"l{n}: &l{n} {{{key}: [{', '.join([f'*l{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    with pytest.raises(SpecError, match=r"study\.yaml"):
        Study.load(write(tmp_path, "\n".join(lines)))


def test_many_fields_are_counted_in_one_pass(tmp_path):
    text = "\n".join(f"f{number}: 1" for number in range(40_000))
    start = time.process_time()
    with pytest.raises(SpecError, match="unknown field"):
        Study.load(write(tmp_path, text))
    assert time.process_time() - start < 20


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_study_that_is_no_plain_file_is_refused_at_once(tmp_path, make):
    path = tmp_path / "none.yaml"
    make(path)
    with pytest.raises(SpecError, match=r"cannot read the study .*: it is not a plain file"):
        Study.load(path)


def test_a_study_has_a_most_size(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("# " + "x" * 2_000_000)
    with pytest.raises(SpecError, match="larger than 1 MB"):
        Study.load(path)
