"""Verdicts on statements follow from invented records, and from nothing else."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from ddl_tools.analysis import claims, estimates
from ddl_tools.analysis.claim_comparisons import Comparison
from ddl_tools.analysis.claims import CONTRADICTED, SUPPORTED, UNDECIDED
from ddl_tools.analysis.estimates import Estimate
from ddl_tools.analysis.paper import AACH, FORMATS, read_paper
from ddl_tools.analysis.tables import (
    KERNELS,
    PROFILE_COLUMNS,
    empty_table,
    runs_table,
    windows_table,
)
from ddl_tools.records.paths import PAPER, STUDIES, Tree
from ddl_tools.scaling.paper import BATCH_SIZE, EPOCHS
from tests.analysis.conftest import GPU, MACHINE, MakeRun, curve, epoch_row, in_blocks
from tests.analysis.figures.test_libraries import trained

CLAIMS = read_paper().claims
SPREAD = (1.0, 1.01, 0.99)
TERMS = {"dataset": "imagenet", "image_size": 224, "local_batch_size": 64, "train_images": 320}
LEARNING = TERMS | {"study": "whole", "model": "resnet50", "epochs": 90, "loader": "dali_cpu",
                    "data_format": "tfrecord"}  # fmt: skip
TINY = {"study": "tiny", "dataset": "fashion_mnist", "loader": "memory", "model": "resnet8"}
VERDICTS = [SUPPORTED, CONTRADICTED, UNDECIDED]
FRAMEWORKS = [("torch", "ddp"), ("tensorflow", "horovod"), ("keras", "spmd"), ("mxnet", "kvstore")]


class Part(NamedTuple):
    """A comparison as claims.csv has it."""

    relation: str
    world_size_min: Any = 8
    world_size_max: Any = 8
    quantity: str = "throughput"
    compared: str = ""
    right: str = "mxnet"


def near(ratio: float, spread: float = 0.01, n: int = 4) -> Estimate:
    """Return the estimate from n pairs around `ratio`."""
    return estimates.paired_ratio(ratio * np.exp(spread * np.linspace(-1, 1, n)), np.ones(n))


def decide(part: Part, ratios: dict[int, Estimate]) -> str:
    seen = [Comparison(part, ratio, frozenset({size})) for size, ratio in ratios.items()]
    return claims.verdict([part], seen)[0]


def judge(tree: Tree, **more: Any) -> pd.DataFrame:
    own = CLAIMS[CLAIMS["paper"] == AACH]
    return claims.judged(runs_table(tree), own, **more).set_index("statement")


def measure(make_run: MakeRun, wall_s: float, system: dict = GPU, **fields: Any) -> None:
    """Write three runs that took `wall_s` an epoch; on `gpus`, four a node."""
    if gpus := fields.pop("gpus", 0):
        fields = {"nodes": gpus // 4, "gpus_per_node": 4} | fields
    if str(fields.get("loader")).startswith("dali"):
        fields = {"data_format": "tfrecord"} | fields
    fields = TERMS | {"strategy": "ddp"} | fields
    for repeat, factor in enumerate(SPREAD):
        make_run(wall_s * factor, system=system, repeat=repeat, **fields)


def loaders(make_run: MakeRun, dali_s: float, **fields: Any) -> None:
    """Write native (20 s) and DALI (`dali_s`) under both frameworks of O01, at both its ends."""
    for strategy, gpus in itertools.product(("ddp", "horovod"), (4, 512)):
        about = {"strategy": strategy, "gpus": gpus} | fields
        measure(make_run, 20.0, **about)
        measure(make_run, dali_s, **about, loader="dali_cpu")


def learn(
    make_run: MakeRun, schedule: str, ends: Sequence[float], batch: int = 16, **fields: Any
) -> None:
    """Write one run per final accuracy of `ends`."""
    fields = TINY | fields
    fields["accumulation"] = batch // fields.get("local_batch_size", 16)
    for repeat, end in enumerate(ends):
        rows = curve([end], fields.get("epochs", 3))
        make_run(rows=rows, schedule=schedule, repeat=repeat, **fields)


@pytest.mark.parametrize(
    ("relation", "by_verdict"),
    [
        ("greater", [[(1.2, 0.01)], [(0.8, 0.01)], [(1.2, 0.5), (1.0, 0.001)]]),
        ("similar", [[(1.0, 0.01)], [(1.2, 0.01), (0.8, 0.01)], [(1.0, 0.5), (1.05, 0.02)]]),
        ("lower", [[(1.2, 0.01)], [(0.8, 0.01)], [(1.0, 0.01)]]),
        ("upper", [[(0.8, 0.01)], [(1.2, 0.01)], [(1.0, 0.01)]]),
        ("value", [[(1.01, 0.01)], [(1.2, 0.01)], [(0.8, 0.5)]]),
    ],
)
def test_one_comparison(relation: str, by_verdict: list) -> None:
    for word, ratios in zip(VERDICTS, by_verdict, strict=True):
        for ratio, spread in ratios:
            assert decide(Part(relation), {8: near(ratio, spread)}) == word
    assert decide(Part(relation), {8: estimates.unpaired_ratio([2.0], [1.0])}) == UNDECIDED


def test_a_range_needs_both_its_ends_and_all_sizes_agreeing() -> None:
    part, yes, no, wide = Part("greater", 4, 512), near(1.2), near(0.8), near(1.0, 0.5)
    assert decide(part, {4: yes, 8: yes}) == UNDECIDED
    assert decide(part, {4: yes, 512: yes}) == SUPPORTED
    assert decide(part, {4: yes, 64: wide, 512: yes}) == UNDECIDED
    assert decide(part, {4: yes, 64: no, 512: yes}) == CONTRADICTED
    assert decide(part, {64: no}) == CONTRADICTED  # one counterexample needs no range


def test_every_part_is_needed_and_an_open_reading_is_refuted_in_all() -> None:
    parts = [Part("greater", right=side) for side in ("horovod", "deepspeed")]
    yes, no = (
        [Comparison(one, near(ratio), frozenset({8})) for one in parts] for ratio in (1.2, 0.8)
    )
    assert claims.verdict(parts, yes[:1])[0] == UNDECIDED
    assert claims.verdict(parts, yes)[0] == SUPPORTED
    assert claims.verdict(parts, yes, reason="a part is not testable")[0] == UNDECIDED
    assert claims.verdict(parts, [no[0], yes[1]])[0] == CONTRADICTED
    assert claims.verdict(parts, [no[0], yes[1]], open_reading=True)[0] == UNDECIDED
    assert claims.verdict(parts, no, open_reading=True)[0] == CONTRADICTED


def test_a_family_asks_more_of_each_member() -> None:
    """One size that alone would refute the claim does not, as one of eight."""
    lucky, part = near(0.96, 0.015, n=3), Part("greater", 4, 512)
    assert 0.01 < 2 * estimates.p_less(lucky) <= estimates.ALPHA
    assert decide(part, {4: lucky}) == CONTRADICTED
    sizes = dict.fromkeys((4, 8, 16, 32, 64, 128, 256, 512), near(1.0, 0.5))
    assert decide(part, sizes | {4: lucky}) == UNDECIDED


def test_each_statement_of_the_files_is_there_once_with_a_reason() -> None:
    paper = read_paper()
    judged = claims.judged(empty_table(), CLAIMS)
    own = judged[judged["paper"] == AACH]
    assert not judged.duplicated(["paper", "statement"]).any()
    assert set(own["verdict"]) == {UNDECIDED}
    assert judged[["claim", "place", "why"]].ne("").all(axis=None)
    assert set(judged["here"]) == {""}
    assert set(paper.quoted["statement"]) <= set(own["statement"])
    for table in (paper.efficiency, paper.runtime, paper.accuracy):
        keys = ["statement", *({"strategy", "loader", "model", "schedule"} & set(table))]
        both = table.merge(CLAIMS[CLAIMS["paper"] == AACH], on=keys, suffixes=("", "_claim"))
        assert len(both) == len(table)
        units = both["unit"].map({"percent": 100}).fillna(1).astype(float)
        assert (both["stated"] * units).tolist() == pytest.approx(both["value"].tolist())
        assert both["relation"].tolist() == both["bound"].tolist()
        assert both["world_size_max"].tolist() == both["world_size"].tolist()
    planned = CLAIMS["plan"].dropna().str.extractall(r"studies/(\w+\.yaml)")[0].unique()
    assert all((STUDIES / name).exists() for name in planned)


@pytest.mark.parametrize(("dali_s", "verdict"), [*zip((10.0, 40.0, 20.2), VERDICTS, strict=True)])
def test_greater(tree: Tree, make_run: MakeRun, dali_s: float, verdict: str) -> None:
    loaders(make_run, dali_s)
    assert judge(tree).loc["O01", "verdict"] == verdict


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("system", MACHINE),
        ("local_batch_size", 32),
        ("data_format", "folder"),
        ("work", "load"),
        ("model", "resnet18"),
        ("dataset", "sample"),
        ("image_size", 96),
        ("classes", 10),
        ("accumulation", 2),
        ("gpus_per_node", 1),
    ],
)
def test_other_terms_judge_nothing(tree: Tree, make_run: MakeRun, field: str, value: Any) -> None:
    loaders(make_run, 10.0, **{field: value})
    row = judge(tree).loc["O01"]
    assert row["verdict"] == UNDECIDED
    assert row["why"].startswith("not measured; planned in studies/juwels_booster")


def test_what_a_cpu_shows_is_shown_and_judges_nothing(tree: Tree, make_run: MakeRun) -> None:
    """A slow worker flatters DeepSpeed's E, which shows against one process without a framework."""
    measure(make_run, 20.0, MACHINE, strategy="single")
    measure(make_run, 10.0, MACHINE, strategy="single", loader="dali_cpu", data_format="folder")
    for strategy, one, two in (("ddp", 20.0, 15.0), ("deepspeed", 40.0, 30.0)):
        measure(make_run, one, MACHINE, strategy=strategy)
        measure(make_run, two, MACHINE, strategy=strategy, gpus_per_node=2)
    judged = judge(tree)
    assert set(judged["verdict"]) == {UNDECIDED}
    here = judged["here"]
    assert "one process: DALI (CPU), folders / native, folders 2.00 [" in here["O01"]
    text = "laptop, 2 ranks, 2 CPU cores, ResNet50: PyTorch-DDP / DeepSpeed (native, folders) 2.0"
    assert text in here["O02"]
    assert "base 1: E of PyTorch-DDP / DeepSpeed (native, folders) 1.00" in here["O10"]
    assert "0.67 and 0.33" in here["O10"]
    assert here[["E04", "E05", "E06", "E07", "E13"]].eq("").all()  # stated of many GPUs


def test_interleaved_windows_are_pairs(tree: Tree, make_run: MakeRun) -> None:
    """A machine that slows down threefold hides 10 % between runs, not between neighbours."""
    drift = [10.0, 16.0, 22.0, 30.0]
    slower = [1.10 * one * factor for one, factor in zip(drift, (1, 1.01, 0.99, 1), strict=True)]
    common = {"reference": {"strategy": "ddp", "gpus_per_node": 2}, "gpus_per_node": 2}
    in_blocks(make_run, {"strategy": "ddp"}, drift, system=MACHINE, **common)
    in_blocks(make_run, {"strategy": "horovod"}, slower, place=1, system=MACHINE, **common)
    assert judge(tree).loc["O02", "here"].endswith("], inconclusive")
    paired = judge(tree, windows=windows_table(tree)).loc["O02", "here"]
    assert paired.endswith("], greater")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.40, 0.50), SUPPORTED), ((0.60, 0.60), CONTRADICTED), ((0.44, 0.52), UNDECIDED)],
)
def test_stated_efficiencies(tree: Tree, make_run: MakeRun, values: tuple, verdict: str) -> None:
    """E04: DDP's efficiency is below 0.44 on 256 GPUs; E05: Horovod's is 0.50 on 128."""
    sizes = {"ddp": 256, "horovod": 128}
    for (strategy, gpus), efficiency in zip(sizes.items(), values, strict=True):
        measure(make_run, 10.0 / efficiency, gpus=gpus, strategy=strategy)
        measure(make_run, 10.0 * gpus / 8, gpus=8, strategy=strategy)
    both = ["E04", "E05"]
    assert judge(tree).loc[both, "verdict"].tolist() == [UNDECIDED] * 2  # another base
    for strategy, gpus in sizes.items():
        measure(make_run, 10.0 * gpus / 4, gpus=4, strategy=strategy)
    assert judge(tree).loc[both, "verdict"].tolist() == [verdict] * 2


@pytest.mark.parametrize(("shallow", "verdict"), [*zip((0.90, 0.70, 0.86), VERDICTS, strict=True)])
def test_efficiencies_alike(tree: Tree, make_run: MakeRun, shallow: float, verdict: str) -> None:
    """O11: the three networks scale alike from 4 to 16 GPUs."""
    for model, efficiency in (("resnet152", 0.9), ("resnet101", 0.9), ("resnet50", shallow)):
        measure(make_run, 40.0, gpus=4, model=model, loader="dali_cpu")
        measure(make_run, 10.0 / efficiency, gpus=16, model=model, loader="dali_cpu")
    assert judge(tree).loc["O11", "verdict"] == verdict


@pytest.mark.parametrize(("hours", "verdict"), [(13, SUPPORTED), (11, CONTRADICTED)])
def test_runtimes(tree: Tree, make_run: MakeRun, hours: float, verdict: str) -> None:
    """R03: about 13 h on 4 GPUs, R01: more than 12 h, under each framework that may be meant."""
    fields = TERMS | {"gpus_per_node": 4, "loader": "dali_gpu", "data_format": "tfrecord"}
    for strategy, (repeat, factor) in itertools.product(("ddp", "horovod"), enumerate(SPREAD)):
        make_run(rows=[epoch_row(0, wall_s=3600 * hours * factor)], system=GPU, epochs=90,
                 strategy=strategy, device="cuda", repeat=repeat, **fields)  # fmt: skip
    judged = judge(tree)
    assert judged.loc[["R03", "R01", "R04"], "verdict"].tolist() == [verdict, verdict, UNDECIDED]


def test_shares_of_kernel_time(tree: Tree, make_run: MakeRun) -> None:
    """O29: on 512 GPUs native spends more on communication, for all three networks."""
    models = ("resnet50", "resnet101", "resnet152")
    for model, loader in itertools.product(models, ("native", "dali_gpu")):
        measure(make_run, 20.0, gpus=512, model=model, loader=loader)
    runs = runs_table(tree)
    about = {"rank": 0, "share": "allreduce", "of": KERNELS}
    profiles = runs[["study", "run_id", "model"]].assign(
        value=runs["loader"].map({"native": 0.8}).fillna(0.4) + 0.01 * runs["repeat"], **about
    )
    profiles = profiles.reindex(columns=list(PROFILE_COLUMNS)).astype(PROFILE_COLUMNS)
    for part, verdict in ((profiles, SUPPORTED), (profiles[:6], UNDECIDED)):
        assert judge(tree, profiles=part).loc["O29", "verdict"] == verdict


def test_accuracies_are_paired_by_repeat(make_run: MakeRun, tree: Tree) -> None:
    """Seeds 20 points apart hide 3 points, unless they are compared one by one."""
    learn(make_run, "cosine", [0.50, 0.70, 0.605])
    learn(make_run, "step", [0.47, 0.671, 0.574])
    learn(make_run, "exponential", [0.501, 0.7012, 0.6058])
    lost = curve([0.1], 3, loss=float("nan"))
    make_run(rows=lost, schedule="step", repeat=3, accumulation=1, **TINY)
    here = judge(tree)["here"]
    assert "cosine - step (1 lost): +3.0 [+2.8, +3.2] points, greater" in here["O24"]
    assert "cosine - exponential: -0.1 [-0.1, -0.1] points, equivalent" in here["O24"]
    learn(make_run, "cosine", [0.50, 0.70, 0.605], study="other")  # other repeats are no pairs
    learn(make_run, "step", [0.47, 0.671, 0.574, 0.60], study="other")
    learn(make_run, "exponential", [0.5], study="other")
    other = judge(tree).loc["O24", "here"].split("other, Fashion-MNIST")[1]
    assert other.split(";")[0].endswith("points, inconclusive")


def test_small_batches_are_looked_for_at_the_smallest(make_run: MakeRun, tree: Tree) -> None:
    for batch, step, cosine in ((16, 0.70, 0.75), (64, 0.60, 0.60), (256, 0.50, 0.40)):
        for schedule, end in (("step", step), ("cosine", cosine)):
            learn(make_run, schedule, [end - 0.001, end, end + 0.001], batch)
    here = judge(tree)["here"]
    assert here["O24"].startswith("tiny, Fashion-MNIST, ResNet8, batch 16: cosine - step: +5.0 ")
    assert here["O20"].startswith("tiny, Fashion-MNIST, ResNet8, batch 256: step - cosine: +10.0 ")
    assert "step: batch 16 - 256: +20.0 [" in here["O21"]


@pytest.mark.parametrize(
    ("shift", "terms", "verdict"),
    [
        (0.0, {}, SUPPORTED),
        (0.25, {}, CONTRADICTED),
        (0.109, {}, UNDECIDED),
        (0.0, {"base_lr": 0.1}, UNDECIDED),
        (0.0, {"dataset": "sample"}, UNDECIDED),
    ],
)
def test_accuracies(make_run: MakeRun, tree: Tree, shift: float, terms: dict, verdict: str) -> None:
    """At 65,536 images exponential is ahead of step, then cosine (O20), with 41 % by step (A04)."""
    ends_of = (("exponential", 0.52, 1), ("step", 0.41 + shift, -1), ("cosine", 0.31, 1))
    for schedule, end, sign in ends_of:
        ends = [end, end + sign * 0.004, end - sign * 0.002]
        learn(make_run, schedule, ends, 65_536, **LEARNING | terms)
    judged = judge(tree)["verdict"]
    assert judged["O20"] == verdict
    assert judged["A04"] == (CONTRADICTED if shift else verdict)


def test_curves_are_compared_early_and_late(make_run: MakeRun, tree: Tree) -> None:
    """O22 is about the first 20 of 90 epochs, O23 about the other 70."""
    courses = (("step", 0.3, 0.41), ("cosine", 0.2, 0.31), ("exponential", 0.5, 0.52))
    for schedule, later, end in courses:
        for repeat, shift in enumerate((1.0, 1.01, 0.99)):
            rows = curve([shift * one for one in (0.1, 0.2, *[later] * 6, end)], 90)
            make_run(rows=rows, schedule=schedule, repeat=repeat, accumulation=1024, **LEARNING)
    assert judge(tree).loc[["O22", "O23"], "verdict"].tolist() == [SUPPORTED, SUPPORTED]


def test_a_run_with_deepspeed_and_dali_is_seen(tree: Tree, make_run: MakeRun) -> None:
    both = {"strategy": "deepspeed", "loader": "dali_cpu", "system": MACHINE}
    make_run(status="failed", rows=[], **both)
    make_run(repeat=1, **both)
    row = judge(tree).loc["dali_with_deepspeed"]
    assert row["verdict"] == UNDECIDED
    assert row["here"] == "1 completed run with both (laptop, the CPU)"


def test_the_terms_are_those_of_the_papers_settings() -> None:
    settings = pd.read_csv(PAPER / "settings.csv").set_index("name")["value"]
    assert (settings["native_format"], settings["dali_format"]) == ("jpeg folders", "tfrecord")
    assert {k: v for k, v in FORMATS.items() if v != "tfrecord"} == {"native": "folder"}
    assert int(settings["local_batch_size"]) == BATCH_SIZE
    assert int(settings["epochs"]) == EPOCHS


@pytest.fixture
def libraries(tree: Tree, make_run: MakeRun) -> Callable[..., pd.DataFrame]:
    """Return a function that measures each library's efficiency with two workers, and judges."""

    def judged(repeats: int = 3, **efficiency: float) -> pd.DataFrame:
        for one, workers, repeat in itertools.product(FRAMEWORKS, (1, 2), range(repeats)):
            if one[0] in efficiency:
                speed = (efficiency[one[0]] * 2) ** (workers - 1)
                wall_s = 20 * (1.0, 1.004, 0.997)[repeat] / speed
                top1 = (0.5, 0.72, 0.8 + 0.001 * repeat)
                trained(make_run, one, wall_s, top1, gpus_per_node=workers, repeat=repeat)
        others = CLAIMS[CLAIMS["paper"] != AACH]
        judged = claims.judged(runs_table(tree), others, windows_table(tree))
        return judged.set_index("statement")

    return judged


CONFIRMED_HERE, CONTRADICTED_HERE = claims.ELSEWHERE[SUPPORTED], claims.ELSEWHERE[CONTRADICTED]


@pytest.mark.parametrize(
    ("efficiency", "expected"),
    [
        ((0.95, 0.8, 0.6, 0.5), [CONFIRMED_HERE, CONFIRMED_HERE]),
        ((0.6, 0.8, 0.5, 0.5), [CONTRADICTED_HERE, CONFIRMED_HERE]),
        ((0.9, 0.9, 0.9, 0.9), [UNDECIDED, UNDECIDED]),
        ((0.95, 0.8, 0.6), [UNDECIDED, UNDECIDED]),
    ],
)
def test_rankings_of_libraries(libraries: Callable, efficiency: tuple, expected: list) -> None:
    """O01: PyTorch-DDP scales best, O02: TensorFlow with Horovod next; needs all their sides."""
    names = [library for library, _ in FRAMEWORKS]
    judged = libraries(**dict(zip(names, efficiency, strict=False)))
    assert judged.loc[["O01", "O02"], "verdict"].tolist() == expected
    if len(efficiency) < len(FRAMEWORKS):
        assert judged.loc["O01", "why"].endswith("mxnet")
    elif expected == [CONFIRMED_HERE] * 2:
        assert "E of PyTorch-DDP / TensorFlow, Horovod 1.19 [" in judged.loc["O01", "here"]
        assert "PyTorch" not in judged.loc["O02", "here"]


def test_one_start_or_one_library_decides_nothing(libraries: Callable) -> None:
    assert (libraries(1, torch=0.95)["here"] == "").all()
    row = libraries(1, tensorflow=0.8, keras=0.6, mxnet=0.5).loc["O01"]
    assert row["verdict"] == UNDECIDED
    assert row["here"] != ""


def test_what_is_not_testable_shows_what_is_seen(libraries: Callable) -> None:
    judged = libraries(torch=0.9, tensorflow=0.9)
    assert judged.loc[["H01", "H02", "M01", "M02"], "verdict"].eq(claims.NOT_TESTABLE).all()
    assert "speed-up of TensorFlow, Horovod (native, folders) 1.80 [" in judged.loc["H01", "here"]
    assert "speed-up of PyTorch-DDP (native, folders) 1.80 [" in judged.loc["M01", "here"]
    assert "PyTorch-DDP - TensorFlow, Horovod: +0.0 [" in judged.loc["O03", "here"]
