"""The studies in studies/: all can be planned, and the paper's are the paper's."""

import csv
import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from ddl_core.config import IMAGENET_TRAIN_IMAGES, RunSpec
from ddl_core.errors import SpecError
from ddl_core.registry import STRATEGIES
from ddl_tools.launch.plan_notes import networks_not_found, short_windows, without_throughput
from ddl_tools.records.paths import PAPER, PROJECT, STUDIES
from ddl_tools.study import Study

FILES = sorted(STUDIES.glob("*.yaml"))
FRAMEWORKS = ("ddp", "horovod", "deepspeed")
PINNED = Path(__file__).with_name("run_ids.csv")  # of studies in their files, and as published


def runs_of(name: str) -> list[RunSpec]:
    return Study.load(STUDIES / f"{name}.yaml").expand()


def paper(name: str) -> str:
    with (PAPER / "settings.csv").open(encoding="utf-8") as file:
        (value,) = (row["value"] for row in csv.DictReader(file) if row["name"] == name)
    return value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_study_can_be_planned(path: Path) -> None:
    study = Study.load(path)
    assert study.name == path.stem  # its records lie under its name
    # One start is enough where windows are repeated in turns, where nothing is measured, and for
    # memory, which hardly varies.
    once = ("cluster_demo", "gpu_smoke", "sharding")
    assert study.repeats >= 3 or study.interleave or study.name in once
    for run in study.expand():
        images = run.train_images or IMAGENET_TRAIN_IMAGES
        assert run.global_batch_size <= images
        cold = run.cold_epochs(images * run.passes(images) // run.global_batch_size)
        assert run.epochs > cold or run.profile_steps  # one is warm, where throughput is asked for


def test_no_run_of_a_study_changes_its_name() -> None:
    """Published runs are those that their study plans: of each, the number and a hash of names."""
    pinned = list(csv.DictReader(PINNED.read_text(encoding="utf-8").splitlines()))
    for row in pinned:
        path = PROJECT / row["study"]
        is_file = path.suffix == ".yaml"
        study = Study.load(path) if is_file else Study.model_validate_json(path.read_bytes())
        names = sorted(run.run_id for run in study.expand())
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        assert (len(names), digest) == (int(row["runs"]), row["sha256"]), path


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("juwels_booster", "max_world_size_dali"),
        ("juwels_booster_native", "max_world_size_native"),
    ],
)
def test_the_papers_matrix_is_the_papers(name: str, largest: str) -> None:
    runs = runs_of(name)
    sizes = {int(size) for size in paper("world_sizes").split()}
    assert {run.world_size for run in runs} == {one for one in sizes if one <= int(paper(largest))}
    assert {run.strategy for run in runs} == set(FRAMEWORKS)
    assert {run.model for run in runs} == {"resnet50", "resnet101", "resnet152"}
    assert {run.repeat for run in runs} == set(range(int(paper("repeats"))))
    for run in runs:
        assert run.gpus_per_node == int(paper("gpus_per_node"))
        assert run.local_batch_size == int(paper("local_batch_size"))
        assert run.base_lr == float(paper("base_lr"))
        assert run.warmup_epochs == float(paper("warmup_epochs"))
        assert run.loader_workers == int(paper("cpu_threads_per_loader"))
        assert not knobs(run)


def is_knob(name: str) -> bool:
    return name.split("_")[0] in STRATEGIES


def knobs(run: RunSpec) -> dict[str, object]:
    """Return the settings of its strategy that a run changes."""
    changed = run.model_dump(exclude_defaults=True)
    return {name: value for name, value in changed.items() if is_knob(name)}


def test_knobs_are_turned_one_at_a_time() -> None:
    runs = runs_of("knobs")
    turned = [knobs(run) for run in runs if run.repeat == 0]
    assert turned.count({}) == len(FRAMEWORKS)
    # Overlap and buckets do nothing at stage 0; they are compared with the same stage without.
    # PowerSGD begins too late for a short run, and is compared with another rank.
    rest = [one for one in turned if one.get("ddp_compression") != "powersgd"]
    several = [one for one in rest if len(one) > 1]
    sharded = {"deepspeed_overlap_comm", "deepspeed_bucket_elements"}
    assert all(len(one) == 2 and sharded & set(one) for one in several)
    own = tuple({f"{run.strategy}_" for run in runs})
    all_knobs = {name for name in RunSpec.model_fields if name.startswith(own)}
    assert {name for one in turned for name in one} == all_knobs


def test_the_papers_accuracy_runs_are_the_papers() -> None:
    runs = runs_of("accuracy_paper")
    batches = {int(size) for size in paper("global_batch_sizes").split()}
    assert {(run.schedule, run.global_batch_size) for run in runs} == {
        (schedule, batch) for schedule in ("step", "cosine", "exponential") for batch in batches
    }
    for run in runs:
        assert run.local_batch_size == int(paper("local_batch_size"))
        assert run.base_lr == float(paper("base_lr"))
        assert run.warmup_epochs == float(paper("warmup_epochs"))
        assert run.epochs == int(paper("epochs"))
        assert run.eval_every == 1


@pytest.mark.parametrize("name", ["accuracy_laptop", "accuracy"])
def test_small_accuracy_studies_compare_the_same_batches(name: str) -> None:
    arms: dict[tuple[str, str], set[int]] = {}
    for run in runs_of(name):
        arms.setdefault((run.optimizer, run.schedule), set()).add(run.global_batch_size)
        assert run.precise_bn
    lars = arms.pop(("lars", "cosine"))
    assert arms.keys() == {("sgd", "step"), ("sgd", "cosine"), ("sgd", "exponential")}
    assert len({frozenset(batches) for batches in arms.values()}) == 1
    assert lars <= arms["sgd", "cosine"]
    assert max(arms["sgd", "step"]) == max(lars) >= 16 * min(arms["sgd", "step"])


def turns(**reference: object) -> dict[str, object]:
    grid = {"strategy": ["single", "ddp"], "work": ["train", "load"]}
    base = {"device": "cpu", "loader": "native"}
    fields = {"name": "turns", "question": "?", "base": base, "axes": grid, "repeats": 2}
    return {**fields, "interleave": {"reference": reference}}


def test_turns_have_one_reference_and_it_may_be_repeated() -> None:
    study = Study.model_validate(turns(strategy="ddp"))
    assert len(study.expand()) == 8
    assert study.reference(1) in study.expand()
    assert study.reference(0).work == "train"  # loading alone is nothing to compare with
    beyond = study.reference(2)
    assert beyond not in study.expand()
    assert (beyond.strategy, beyond.repeat) == ("ddp", 2)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({"batch": 3}, r"interleave\.reference: unknown field 'batch'"),
        ({"strategy": "horovod"}, "must fit one configuration alone, but it fits none"),
        ({"loader": "native"}, "must fit one configuration alone, but it fits single-.*, ddp-"),
        ({"strategy": "ddp", "work": "load"}, "but it fits none; name fields that only"),
    ],
)
def test_a_reference_that_is_not_one_arm_is_refused(reference: dict, words: str) -> None:
    with pytest.raises((SpecError, ValidationError), match=words):
        Study.model_validate(turns(**reference)).expand()


@pytest.mark.parametrize("name", ["one_gpu", "one_gpu_loaders"])
def test_windows_on_one_gpu_are_long_and_its_batch_is_large(name: str) -> None:
    runs = runs_of(name)
    assert short_windows(runs) is None
    assert {run.local_batch_size for run in runs} == {256}
    assert {run.loader_workers for run in runs if run.loader != "synthetic"} <= {14}
    assert any(run.compile for run in runs if run.work == "train")
    # Decoding alone takes as long either way.
    assert not any(run.compile for run in runs if run.work == "load")


def test_a_network_that_python_does_not_find_is_told() -> None:
    names = ("resnet18", "ddl_core.models:resnet18", "gone.net:a", "__main__:net")
    runs = [RunSpec(model=name) for name in names]
    assert networks_not_found(runs[:2]) is None
    assert "model __main__:net, gone.net:a;" in str(networks_not_found(runs))


def test_short_windows_of_a_plan_are_told() -> None:
    runs = runs_of("juwels_booster")
    assert short_windows(runs) is None
    text = short_windows([run.model_copy(update={"min_steps_per_epoch": 0}) for run in runs])
    # 1,281,167 images in batches of 64 a GPU: 5004 steps on 4, 19 on 1024.
    sizes = "(156 on 128 ranks, 78 on 256 ranks, 39 on 512 ranks, 19 on 1024 ranks)"
    assert all(part in str(text) for part in (sizes, "in 324 of 729 runs"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"train_images": 12_799}, "199 on 1 rank)"),
        ({"train_images": 12_800}, None),
        ({"train_images": 12_799, "device": "cpu"}, None),  # there a step takes long enough
        ({"train_images": None}, None),  # nobody knows how many there are
    ],
)
def test_windows_from_200_steps_on_are_long_enough(fields: dict, told: str | None) -> None:
    text = short_windows([RunSpec(**{"device": "cuda", **fields})])
    assert text is None if told is None else told in str(text)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"epochs": 3, "discard_steps": 20}, "of epochs = 3, the first 3 do not count"),
        ({"epochs": 2, "discard_steps": 0}, None),
        ({"epochs": 2, "discard_steps": 0, "profile_steps": 2}, "the profiled one do not count"),
        ({"epochs": 3, "discard_steps": 9}, "the first 3 do not count"),  # 4 steps an epoch
        ({"epochs": 3, "discard_steps": 8}, None),
        ({"epochs": 3, "discard_steps": 20, "train_images": None}, None),  # nobody knows how many
        ({"epochs": 3, "discard_steps": 20, "prefix": "env"}, None),
    ],
)
def test_a_warm_up_as_long_as_the_run_is_told(fields: dict, told: str | None) -> None:
    text = without_throughput([RunSpec(**{"train_images": 64, "local_batch_size": 16, **fields})])
    assert text is None if told is None else told in str(text)


@pytest.mark.parametrize(
    ("study", "largest"),
    [
        ("emulated_cluster", {("ddp", 0, 16), ("deepspeed", 0, 16), ("deepspeed", 1, 16)}),
        ("emulated_horovod", {("horovod", 0, 8)}),
    ],
)
def test_an_emulated_study_scales_all_sizes_alike(study: str, largest: set) -> None:
    """Bytes are as much smaller as the gradients are, times as much longer as a step is."""
    runs = runs_of(study)
    for run in runs:
        steps = (run.known_images or 0) / run.global_batch_size
        assert (run.emulated, run.gpus_per_node, steps) == (True, 1, 2)
        if run.strategy == "ddp":
            assert run.ddp_bucket_mb * run.emu_shrink in (25, 5, 1)
            assert run.ddp_first_bucket_mb == 1 / run.emu_shrink
        if run.strategy == "horovod":
            assert run.horovod_fusion_mb * run.emu_shrink == 128
            assert run.horovod_cycle_ms == pytest.approx(run.emu_step_ms / 104, rel=0.03)
    assert largest <= {(run.strategy, run.deepspeed_zero_stage, run.nodes) for run in runs}
    assert len({run.emu_link_mbit for run in runs if run.nodes > 1}) == 3


@pytest.mark.parametrize(("name", "group"), [("vit", 4), ("vit_laptop", 2)])
def test_vit_compares_all_ways_to_shard(name: str, group: int) -> None:
    runs = runs_of(name)
    ways = {
        (run.strategy, run.ddp_bucket_view, run.fsdp_shards, run.deepspeed_zero_stage)
        for run in runs
    }
    assert ways == {
        *(("ddp", view, None, 0) for view in (False, True)),
        *(("fsdp", False, shards, 0) for shards in (None, group)),
        *(("deepspeed", False, None, stage) for stage in (1, 2, 3)),
    }
    assert {run.activation_checkpointing for run in runs} == {False, True}
    assert {run.optimizer for run in runs} == {"adamw"}
    assert len({run.world_size for run in runs}) == 1


def test_a_second_start_is_another_run_of_the_same_seeds_and_no_reference() -> None:
    study = Study.load(STUDIES / "laptop.yaml")
    runs = study.expand()
    again = [run for run in runs if run.second_start]
    assert study.interleave is not None
    firsts = [run for run in runs if study.interleave.is_reference(run)]
    assert len(again) == len(firsts) == study.repeats > 1
    for first, second in zip(firsts, again, strict=True):
        assert first.run_id != second.run_id
        assert second.model_copy(update={"second_start": False}) == first
    assert study.reference(0) == firsts[0]


SHARED = {"name": "shared", "question": "?", "repeats": 1}


def test_ranks_share_a_global_batch() -> None:
    study = Study(
        **SHARED,
        base={"strategy": "ddp", "global_batch_size": 64},
        axes=[{"gpus_per_node": [1, 2], "accumulation": [1, 2]}],
    )
    runs = study.expand()
    assert {run.global_batch_size for run in runs} == {64}
    assert [run.local_batch_size for run in runs] == [64, 32, 32, 16]
    plain = Study(**SHARED, base={"strategy": "ddp", "local_batch_size": 64})
    assert plain.expand()[0].run_id == runs[0].run_id


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"global_batch_size": 65}, "65 is no multiple of 2"),
        ({"global_batch_size": 64.0}, "64.0 is no multiple"),
        ({"global_batch_size": True}, "true is no multiple|True is no multiple"),
        ({"global_batch_size": 64, "local_batch_size": 32}, "both given; keep one"),
    ],
)
def test_a_wrong_global_batch_is_named(fields: dict[str, object], named: str) -> None:
    base = {"strategy": "ddp", "gpus_per_node": 2, **fields}
    with pytest.raises(SpecError, match=named):
        Study(**SHARED, base=base).expand()
