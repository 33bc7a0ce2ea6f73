"""Every statement has a verdict or a reason, and verdicts follow from planted records."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
import pytest

from ddl_core.analysis.claims import table, terms
from ddl_core.analysis.claims.decide import CONTRADICTED, SUPPORTED, UNDECIDED
from ddl_core.analysis.claims.statements import DALI_WITH_DEEPSPEED, EPOCHS, LOCAL_BATCH
from ddl_core.analysis.paper import FORMATS, Paper, read_paper
from ddl_core.analysis.tables import (
    KERNELS,
    PROFILE_COLUMNS,
    empty_table,
    runs_table,
    windows_table,
)
from ddl_core.records.paths import PAPER, Tree
from ddl_core.spec.run import RunSpec
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row, in_blocks

GPU = {"cpu": "Example CPU", "cpu_cores": 48, "device": "cuda", "accelerator": "Example GPU"}
SPREAD = (1.0, 1.01, 0.99)
ENDS = (4, 512)
TERMS = {
    "dataset": "imagenet",
    "image_size": 224,
    "local_batch_size": LOCAL_BATCH,
    "train_images": 320,
}


@pytest.fixture(scope="module")
def paper() -> Paper:
    return read_paper()


def judge(tree: Tree, paper: Paper, **more: Any) -> pd.DataFrame:
    judged = table.judged(runs_table(tree.runs), paper, **more)
    return judged.set_index("statement")


def measure(make_run: MakeRun, wall_s: float, system: dict = GPU, **fields: Any) -> None:
    """Write three runs of one arm that took `wall_s` in each warm epoch, within 1 %.

    On `gpus` GPUs, four a node, if that is given.
    """
    fields = TERMS | {"strategy": "ddp"} | _placed(fields)
    if str(fields.get("loader")).startswith("dali"):
        fields = {"data_format": "tfrecord"} | fields
    for repeat, factor in enumerate(SPREAD):
        make_run(wall_s * factor, system=system, repeat=repeat, **fields)


def _placed(fields: dict[str, Any]) -> dict[str, Any]:
    gpus = fields.pop("gpus", 0)
    return ({"nodes": gpus // 4, "gpus_per_node": 4} if gpus else {}) | fields


def loaders(make_run: MakeRun, dali_s: float, sizes: Iterable[int] = ENDS, **common: Any) -> None:
    """Write native (20 s) and DALI (`dali_s`) under both frameworks of O01."""
    for strategy in ("ddp", "horovod"):
        for gpus in sizes:
            arm = {"strategy": strategy, "gpus": gpus, **common}
            measure(make_run, 20.0, **arm)
            measure(make_run, dali_s, loader="dali_cpu", **arm)


def test_every_statement_is_there_once_with_a_verdict_or_a_reason(paper: Paper) -> None:
    judged = table.judged(empty_table(), paper)
    assert judged["statement"].is_unique
    files = (paper.orderings, paper.efficiency, paper.runtime, paper.accuracy, paper.quoted)
    ids = {name for file in files for name in file["statement"]}
    assert set(judged["statement"]) == ids | {DALI_WITH_DEEPSPEED}
    of_paper = judged[~judged["kind"].isin(["quoted", "compatibility"])]
    assert len(of_paper) == 62
    assert set(judged["verdict"]) == {UNDECIDED}
    assert judged[["claim", "place", "why"]].notna().all(axis=None)
    assert judged[["claim", "place", "why"]].ne("").all(axis=None)
    assert set(judged["here"]) == {""}


@pytest.mark.parametrize(
    ("dali_s", "verdict"), [(10.0, SUPPORTED), (40.0, CONTRADICTED), (20.2, UNDECIDED)]
)
def test_greater(tree: Tree, make_run: MakeRun, paper: Paper, dali_s: float, verdict: str) -> None:
    loaders(make_run, dali_s)
    assert judge(tree, paper).loc["O01", "verdict"] == verdict


def test_a_range_needs_its_ends(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    loaders(make_run, 10.0, sizes=(4, 8))
    row = judge(tree, paper).loc["O01"]
    assert row["verdict"] == UNDECIDED
    assert row["why"] == "the claim is about 4 to 512 GPUs, measured at 4, 8"


@pytest.mark.parametrize(
    "changed",
    [
        {"system": MACHINE},
        {"local_batch_size": 32},
        {"data_format": "folder"},
        {"work": "load"},
        {"model": "resnet18"},
        {"dataset": "sample"},
        {"image_size": 96},
        {"classes": 10},
        {"accumulation": 2},
        {"gpus_per_node": 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_terms_judge_nothing(
    tree: Tree, make_run: MakeRun, paper: Paper, changed: dict[str, Any]
) -> None:
    loaders(make_run, 10.0, **changed)
    row = judge(tree, paper).loc["O01"]
    assert row["verdict"] == UNDECIDED
    assert row["why"].startswith("not measured on its terms; planned in studies/juwels_booster")


def test_what_a_cpu_shows_is_shown(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    measure(make_run, 20.0, MACHINE, gpus_per_node=2)
    measure(make_run, 25.0, MACHINE, gpus_per_node=2, strategy="horovod")
    row = judge(tree, paper).loc["O02"]
    place, text = row["here"].split(": ", 1)
    assert place == "laptop, 2 workers, 2 CPU cores, ResNet50"
    assert text.startswith("PyTorch-DDP / Horovod (native, folders) 1.25 [")
    assert text.endswith("], greater")
    assert row["verdict"] == UNDECIDED


def test_one_process_tells_of_loaders_and_not_of_frameworks(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    measure(make_run, 20.0, MACHINE, strategy="single")
    measure(make_run, 10.0, MACHINE, strategy="single", loader="dali_cpu", data_format="folder")
    judged = judge(tree, paper)
    assert "one process: DALI (CPU), folders / native, folders 2.00 [" in judged.loc["O01", "here"]
    assert judged.loc["O02", "here"] == ""


def test_windows_that_took_turns_are_pairs(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    """A machine that slows down threefold hides 10 % between runs, not between neighbours."""
    drift = [10.0, 16.0, 22.0, 30.0]
    slower = [
        1.10 * wall_s * factor for wall_s, factor in zip(drift, (1, 1.01, 0.99, 1), strict=True)
    ]
    common = {"system": MACHINE, "gpus_per_node": 2}
    reference = {"strategy": "ddp", "gpus_per_node": 2}
    in_blocks(make_run, {"strategy": "ddp"}, drift, reference=reference, **common)
    in_blocks(make_run, {"strategy": "horovod"}, slower, reference=reference, place=1, **common)
    assert judge(tree, paper).loc["O02", "here"].endswith("], cannot say")
    paired = judge(tree, paper, windows=windows_table(tree.runs)).loc["O02", "here"]
    assert paired.startswith("laptop, 2 workers, 2 CPU cores, ResNet50: PyTorch-DDP / Horovod")
    assert paired.endswith("], greater")


def test_a_slow_base_that_flatters_e_shows_against_one_process(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    """DeepSpeed's one worker is slow, so its E is that of DDP; against one process it is not."""
    measure(make_run, 20.0, MACHINE, strategy="single")
    for strategy, one, two in (("ddp", 20.0, 15.0), ("deepspeed", 40.0, 30.0)):
        measure(make_run, one, MACHINE, strategy=strategy)
        measure(make_run, two, MACHINE, strategy=strategy, gpus_per_node=2)
    told = judge(tree, paper).loc["O10", "here"]
    assert "E of PyTorch-DDP / DeepSpeed (native, folders) 1.00" in told
    assert "0.67 and 0.33" in told


@pytest.mark.parametrize(
    ("efficiency", "verdict"), [(0.40, SUPPORTED), (0.60, CONTRADICTED), (0.44, UNDECIDED)]
)
def test_stated_bound(
    tree: Tree, make_run: MakeRun, paper: Paper, efficiency: float, verdict: str
) -> None:
    measure(make_run, 640.0, gpus=4)
    measure(make_run, 10.0 / efficiency, gpus=256)
    row = judge(tree, paper).loc["E04"]
    assert row["verdict"] == verdict
    assert row["claim"] == "parallel efficiency <0.44 (PyTorch-DDP, native, ResNet50, 256 GPUs)"


@pytest.mark.parametrize(
    ("efficiency", "verdict"), [(0.50, SUPPORTED), (0.60, CONTRADICTED), (0.52, UNDECIDED)]
)
def test_stated_value(
    tree: Tree, make_run: MakeRun, paper: Paper, efficiency: float, verdict: str
) -> None:
    measure(make_run, 320.0, gpus=4, strategy="horovod")
    measure(make_run, 10.0 / efficiency, gpus=128, strategy="horovod")
    assert judge(tree, paper).loc["E05", "verdict"] == verdict


def test_another_base_decides_nothing(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    measure(make_run, 640.0, gpus=8)
    measure(make_run, 10.0, gpus=256)
    assert judge(tree, paper).loc["E04", "verdict"] == UNDECIDED


@pytest.mark.parametrize(
    ("deep", "shallow", "verdict"),
    [(0.90, 0.90, SUPPORTED), (0.90, 0.70, CONTRADICTED), (0.90, 0.86, UNDECIDED)],
)
def test_efficiencies_alike(
    tree: Tree, make_run: MakeRun, paper: Paper, deep: float, shallow: float, verdict: str
) -> None:
    """O11: the three networks scale alike from 4 to 16 GPUs."""
    for model, efficiency in (("resnet152", deep), ("resnet101", deep), ("resnet50", shallow)):
        common = {"model": model, "loader": "dali_cpu"}
        measure(make_run, 40.0, gpus=4, **common)
        measure(make_run, 10.0 / efficiency, gpus=16, **common)
    assert judge(tree, paper).loc["O11", "verdict"] == verdict


def test_open_limit_counts_at_the_end_that_is_given(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    """ "DeepSpeed is fastest on few GPUs" is about 4, "DDP on many" about 512."""
    for gpus in ENDS:
        for strategy, wall_s in (("deepspeed", 10.0), ("ddp", 20.0), ("horovod", 30.0)):
            measure(make_run, wall_s, gpus=gpus, strategy=strategy)
    judged = judge(tree, paper)
    assert judged.loc["O03", "verdict"] == SUPPORTED
    assert judged.loc["O04", "verdict"] == CONTRADICTED


@pytest.mark.parametrize(("hours", "verdict"), [(13, SUPPORTED), (11, CONTRADICTED)])
def test_runtimes(tree: Tree, make_run: MakeRun, paper: Paper, hours: float, verdict: str) -> None:
    """R03, about 13 h on 4 GPUs, by 90 epochs on ImageNet under each framework it may mean."""
    for strategy in ("ddp", "horovod"):
        for repeat, factor in enumerate(SPREAD):
            rows = [epoch_row(0, wall_s=3600 * hours * factor)]
            make_run(system=GPU, strategy=strategy, gpus_per_node=4, loader="dali_gpu",
                     data_format="tfrecord", device="cuda", epochs=EPOCHS, repeat=repeat,
                     rows=rows, **TERMS)  # fmt: skip
    judged = judge(tree, paper)
    assert judged.loc["R03", "verdict"] == verdict
    assert judged.loc["R01", "verdict"] == verdict  # more than 12 h
    assert judged.loc["R04", "verdict"] == UNDECIDED


def profiled(runs: pd.DataFrame, share: str, values: list[float]) -> pd.DataFrame:
    rows = [
        {"study": run["study"], "run_id": run["run_id"], "rank": rank, "share": share,
         "of": KERNELS, "value": value}
        for run, value in zip(runs.to_dict("records"), values, strict=True)
        for rank in (0, 1)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(PROFILE_COLUMNS)).astype(PROFILE_COLUMNS)


def test_shares_of_kernel_time(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    """O29: on 512 GPUs native spends more on communication, for all three networks."""
    for model in ("resnet50", "resnet101", "resnet152"):
        measure(make_run, 20.0, gpus=512, model=model)
        measure(make_run, 20.0, gpus=512, model=model, loader="dali_gpu")
    runs = runs_table(tree.runs)
    values = [
        (0.8 if loader == "native" else 0.4) + 0.01 * repeat
        for loader, repeat in zip(runs["loader"], runs["repeat"], strict=True)
    ]
    profiles = profiled(runs, "allreduce", values)
    judged = table.judged(runs, paper, profiles=profiles).set_index("statement")
    assert judged.loc["O29", "verdict"] == SUPPORTED
    one = profiles[profiles["run_id"].isin(runs.loc[runs["model"] == "resnet50", "run_id"])]
    judged = table.judged(runs, paper, profiles=one).set_index("statement")
    assert judged.loc["O29", "verdict"] == UNDECIDED


def test_a_number_stated_of_many_gpus_is_not_set_beside_few_workers(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    for workers in (1, 2):
        measure(make_run, 20.0, MACHINE, gpus_per_node=workers)
    judged = judge(tree, paper)
    assert judged.loc[["E04", "E05", "E06", "E07", "E13"], "here"].eq("").all()


def test_no_study_is_said_to_plan_what_its_records_could_not_judge(paper: Paper) -> None:
    """A plan and a verdict use the same terms."""
    run = RunSpec.model_validate({**TERMS, "strategy": "ddp", "gpus_per_node": 4})
    assert terms.of_speed(run.model_dump())
    assert not terms.of_speed(run.model_copy(update={"dataset": "sample"}).model_dump())


def test_a_run_with_both_tells_of_its_own_releases_only(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    both = {"strategy": "deepspeed", "loader": "dali_cpu", "system": MACHINE}
    make_run(status="failed", rows=[], **both)
    assert judge(tree, paper).loc[DALI_WITH_DEEPSPEED, "verdict"] == UNDECIDED
    make_run(repeat=1, **both)
    make_run(repeat=2, **both)
    row = judge(tree, paper).loc[DALI_WITH_DEEPSPEED]
    assert row["verdict"] == UNDECIDED
    assert row["here"] == "2 completed runs with both (laptop; the CPU)"


def test_the_terms_are_those_of_the_papers_settings() -> None:
    settings = pd.read_csv(PAPER / "settings.csv").set_index("name")["value"]
    assert settings["native_format"] == "jpeg folders"
    assert settings["dali_format"] == "tfrecord"
    assert FORMATS["native"] == "folder"
    assert {FORMATS[name] for name in FORMATS if name.startswith("dali")} == {"tfrecord"}
    assert int(settings["local_batch_size"]) == LOCAL_BATCH
    assert int(settings["epochs"]) == EPOCHS
