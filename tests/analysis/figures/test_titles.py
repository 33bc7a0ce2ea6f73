"""Texts of each question: title, sentences, caption and table of invented runs, in golden/.

Titles name a configuration that one can use, and say whether the interval decides its number.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ddl_tools.analysis import ratios
from ddl_tools.analysis.figures import QUESTIONS, memory
from ddl_tools.analysis.redraw import tables_of
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import Golden, MakeRun, curve, epoch_row, in_blocks, writer
from tests.analysis.drawn import ACCURACY, texts
from tests.analysis.emulated import emulate

STUDY = "invented"
SURE, WILD, ONE = (1.0, 1.01, 0.99), (1.0, 2.0, 0.5), (1.0,)
DDP, HOROVOD, TWO = {"strategy": "ddp"}, {"strategy": "horovod"}, {"gpus_per_node": 2}

Case = Callable[..., None]
CASES: dict[str, list[Case]] = {name: [] for name in QUESTIONS}


def case(*names: str) -> Callable[[Case], Case]:
    """Register a function that writes the runs of a case of some questions."""

    def register(write: Case) -> Case:
        for name in names:
            CASES[name].append(write)
        return write

    return register


@pytest.mark.parametrize("name", CASES)
def test_texts_are_those_kept(
    name: str, tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda _: None)  # texts need no places
    question, parts = QUESTIONS[name], []
    for write in [nothing, *CASES[name]]:
        tree = Tree(tmp_path / write.__name__)
        make, again = (partial(writer(one), study=STUDY) for one in (tree, tree.second()))
        write(make, again) if write in CONFIRMED else write(make)
        found = [*tree.studies()] and (
            runs_table(tree, studies=[STUDY]),
            windows_table(tree, [STUDY]),
        )
        points = question.points(tables_of(tree, STUDY if found else "", *found))
        parts.append(f"## {write.__doc__}\n\n{texts(question, points)}")
        if name == "comparison" and (lines := ratios.sentences(points)):
            parts.append("\n".join(["```text", *lines, "```\n"]))
            parts.append("".join(f"- {one}\n" for one in ratios.unconfirmed(points)))
    golden(name, f"# {question.asks}\n\n" + "\n".join(parts))


def nothing(_: MakeRun) -> None:
    """Nothing measured"""


def made(make: MakeRun, wall_s: float, factors: Sequence[float], **fields: Any) -> None:
    for repeat, factor in enumerate(factors):
        make(wall_s * factor, repeat=repeat, **fields)


# --- ratios to a baseline ---


@case("comparison")
def baseline(make: MakeRun) -> None:
    """A baseline alone"""
    made(make, 20.0, SURE, **DDP)


@case("comparison")
def baseline_and_control(make: MakeRun) -> None:
    """A baseline beside synthetic data alone"""
    made(make, 20.0, SURE, **DDP)
    made(make, 10.0, SURE, **DDP, loader="synthetic")


@case("comparison")
def controls(make: MakeRun) -> None:
    """Synthetic data and a second start beside another loader"""
    made(make, 20.0, SURE, loader="native")
    made(make, 15.0, SURE, loader="native", second_start=True)
    made(make, 5.0, SURE, loader="synthetic")
    made(make, 10.0, SURE, loader="turbo")


@case("comparison")
def undecided(make: MakeRun) -> None:
    """Nothing decided: starts that vary, and one start"""
    made(make, 20.0, WILD, **DDP)
    made(make, 10.0, WILD, **HOROVOD)
    made(make, 4.0, ONE, strategy="deepspeed")


@case("comparison")
def one_start(make: MakeRun) -> None:
    """One start of each"""
    made(make, 20.0, ONE, **DDP)
    made(make, 10.0, ONE, **HOROVOD)


@case("comparison")
def decided(make: MakeRun) -> None:
    """The decided one is named, though others may be faster"""
    made(make, 20.0, SURE, **DDP)
    made(make, 10.0, SURE, **HOROVOD)
    made(make, 4.0, ONE, strategy="deepspeed", deepspeed_zero_stage=1)
    made(make, 6.0, WILD, strategy="deepspeed", deepspeed_zero_stage=2)


@case("comparison")
def slower(make: MakeRun) -> None:
    """None is faster than the baseline"""
    made(make, 20.0, SURE, **DDP)
    made(make, 40.0, SURE, **HOROVOD)


@case("comparison")
def equivalent(make: MakeRun) -> None:
    """Equivalent within the margin"""
    made(make, 20.0, (1.0, 1.001, 0.999), **DDP)
    made(make, 20.1, (1.0, 1.001, 0.999), **HOROVOD)


@case("comparison")
def many(make: MakeRun) -> None:
    """More configurations than one sentence names"""
    for number in range(6):
        made(make, 20.0 + number, SURE, loader_prefetch=2 + number)


@case("comparison")
def networks(make: MakeRun) -> None:
    """A panel of each network, one of them without another configuration"""
    for model, fields in itertools.product(("resnet50", "alexnet"), (DDP, HOROVOD)):
        if (model, fields) != ("alexnet", HOROVOD):
            made(make, 20.0 if fields == DDP else 25.0, SURE, model=model, **fields)


@case("comparison", "throughput_vs_workers", "efficiency")
def ranks(make: MakeRun) -> None:
    """Several numbers of ranks of two strategies and of synthetic data"""
    for number in (1, 2, 4):
        for (fields, loss), loader in itertools.product(
            ((DDP, 1.1), (HOROVOD, 1.3)), ("native", "synthetic")
        ):
            faster = 3 if loader == "synthetic" and number > 1 else 1
            wall_s = 20.0 / number * (loss if number > 1 else 1) / faster
            made(make, wall_s, SURE, loader=loader, gpus_per_node=number, **fields)


@case("comparison")
def confirmed(make: MakeRun, again: MakeRun) -> None:
    """Measured twice: confirmed, disjoint, and undecided in the second measurement"""
    noise = (1.0, 1.01, 0.99)
    for write, horovod, deepspeed, spread in ((make, 5.0, 12.5, 1), (again, 5.0, 20.0, 20)):
        in_blocks(write, DDP, [10.0 * one for one in noise])
        in_blocks(write, HOROVOD, [horovod * one for one in noise], place=1)
        zero = {"strategy": "deepspeed"}
        in_blocks(write, zero, [deepspeed * one for one in noise], place=2)
        single = {"strategy": "single"}
        in_blocks(write, single, [9.0 * one**spread for one in noise], place=3)


@case("comparison")
def not_confirmed(make: MakeRun, again: MakeRun) -> None:
    """Measured twice, and the second measurement decides otherwise; a control as well"""
    noise = (1.0, 1.01, 0.99)
    for write, factor in ((make, 0.5), (again, 1.5)):
        in_blocks(write, DDP, [10.0 * one for one in noise])
        in_blocks(write, HOROVOD, [10.0 * factor * one for one in noise], place=1)
        free = DDP | {"loader": "synthetic"}
        in_blocks(write, free, [10.0 * factor * one for one in noise], place=2)


@case("comparison")
def same_direction(make: MakeRun, again: MakeRun) -> None:
    """Measured twice: faster both times, by ratios that do not agree"""
    noise = (1.0, 1.01, 0.99)
    for write, horovod in ((make, 5.0), (again, 8.0)):
        in_blocks(write, DDP, [10.0 * one for one in noise])
        in_blocks(write, HOROVOD, [horovod * one for one in noise], place=1)


CONFIRMED = (confirmed, not_confirmed, same_direction)


# --- sizes ---


def _growth(name: str, size: str, factors: Sequence[float], about: str) -> None:
    def write(make: MakeRun) -> None:
        for number in (1, 2, 4):
            made(make, 20.0 / number, factors, **DDP, **{size: number})

    write.__doc__, write.__name__ = about, about.replace(" ", "_")
    case(name)(write)


for _name, _size in (
    ("throughput_vs_workers", "gpus_per_node"),
    ("throughput_vs_batch_size", "local_batch_size"),
):
    _growth(_name, _size, SURE, "Growth that is decided")
    _growth(_name, _size, WILD, "Growth of starts that vary")
    _growth(_name, _size, ONE, "Growth of one start")


@case("efficiency_emulated")
def links(make: MakeRun) -> None:
    """Two links: the one with the most starts first, the slowest first"""
    for (mbit, step_ms), nodes in itertools.product(((6, 5000), (3, 10000)), (1, 2, 4)):
        about = {"emu_link_mbit": mbit, "emu_step_ms": step_ms, "study": STUDY}
        for repeat in range(3 if mbit == 3 else 2):
            emulate(
                make, (1 - 0.1 * (nodes - 1)) * SURE[repeat], nodes=nodes, repeat=repeat, **about
            )
            zero = about | {"strategy": "deepspeed", "repeat": repeat}
            emulate(make, (1 - 0.2 * (nodes - 1)) * SURE[repeat], nodes=nodes, **zero)


@case("efficiency_emulated")
def one_curve(make: MakeRun) -> None:
    """One curve of one start"""
    for nodes in (1, 2):
        emulate(make, 1 - 0.1 * (nodes - 1), nodes=nodes, study=STUDY)


# --- parts of the time, and memory ---


@case("time_budget")
def parts(make: MakeRun) -> None:
    """Two strategies on one and two ranks"""
    for number, fields in itertools.product((1, 2), (DDP, HOROVOD)):
        wall_s = 20.0 if number == 1 else 14.0 if fields == DDP else 18.0
        made(make, wall_s, SURE, gpus_per_node=number, **fields)


@case("time_budget")
def parts_of_one(make: MakeRun) -> None:
    """One number of ranks, so no efficiency"""
    made(make, 20.0, SURE, **DDP)


def _halves(make: MakeRun, loading: float, training: float, factors: Sequence[float]) -> None:
    made(make, 20.0, factors, loader="native")
    made(make, loading, factors, loader="native", work="load")
    made(make, training, factors, loader="synthetic")


@case("loader_bound")
def loader_limits(make: MakeRun) -> None:
    """The loader is the limit"""
    _halves(make, 19.9, 10.0, (1.0, 1.001, 0.999))


@case("loader_bound")
def both_limit(make: MakeRun) -> None:
    """Both share the cores, and another loader has one half alone"""
    _halves(make, 12.0, 13.0, SURE)
    made(make, 15.0, SURE, loader="turbo")


@case("loader_bound")
def one_of_each(make: MakeRun) -> None:
    """One start"""
    _halves(make, 18.0, 10.0, ONE)


def _memory(make: MakeRun, gib: float, factors: Sequence[float], **fields: Any) -> None:
    for repeat, factor in enumerate(factors):
        taken = round(gib * factor * memory.GIB)
        rows = [epoch_row(epoch, max_memory_bytes=taken, wall_s=20 / gib) for epoch in range(2)]
        make(rows=rows, repeat=repeat, **TWO, **fields)


@case("memory_per_rank", "memory_against_throughput")
def least_memory(make: MakeRun) -> None:
    """Decided; a strategy is compared by the best of its settings"""
    _memory(make, 2.0, SURE, **DDP)
    _memory(make, 3.0, SURE, strategy="deepspeed", deepspeed_zero_stage=3)
    small = {"deepspeed_zero_stage": 3, "deepspeed_bucket_elements": 5_000_000}
    _memory(make, 1.5, SURE, strategy="deepspeed", **small)
    _memory(make, 1.0, SURE, strategy="fsdp")


@case("memory_per_rank", "memory_against_throughput")
def memory_that_varies(make: MakeRun) -> None:
    """Inconclusive"""
    _memory(make, 2.0, WILD, **DDP)
    _memory(make, 1.0, WILD, strategy="fsdp")


@case("memory_per_rank", "memory_against_throughput")
def memory_of_one_start(make: MakeRun) -> None:
    """One start"""
    _memory(make, 2.0, ONE, **DDP)
    _memory(make, 1.0, ONE, strategy="fsdp")


# --- accuracy ---


def _learn(make: MakeRun, schedule: str, accumulation: int, repeat: int, *ends: float) -> None:
    rows = curve([0.1, ends[0]])
    rows[-1].precise_bn_top1 = ends[1] if len(ends) > 1 else None
    fields = ACCURACY | {"schedule": schedule, "repeat": repeat, "precise_bn": len(ends) > 1}
    make(rows=rows, accumulation=accumulation, **fields | {"study": STUDY})


@case("accuracy_vs_batch_size")
def batches(make: MakeRun) -> None:
    """Losses from batch to batch; one mean is lower by less than its interval"""
    for repeat, wobble in enumerate((0.02, -0.02, 0.0)):
        for accumulation, mean in ((1, 0.8), (2, 0.79), (4, 0.6), (8, 0.5)):
            for schedule, share in (("cosine", 1.0), ("step", 0.0)):
                value = 0.8 + share * (mean - 0.8) + wobble * (accumulation == 2)
                _learn(make, schedule, accumulation, repeat, value)


@case("accuracy_vs_batch_size")
def two_seeds(make: MakeRun) -> None:
    """Two seeds: no interval is shown, and nothing is decided"""
    for repeat, schedule, accumulation in itertools.product((0, 1), ("cosine", "step"), (1, 20)):
        _learn(make, schedule, accumulation, repeat, 0.8 - 0.3 * (accumulation > 1) + 0.01 * repeat)


@case("accuracy_vs_batch_size")
def no_common_batch(make: MakeRun) -> None:
    """No way to learn has both the smallest and the largest batch"""
    for schedule, sizes in (("step", (1, 4)), ("cosine", (4, 20))):
        for accumulation in sizes:
            _learn(make, schedule, accumulation, 0, 0.8)


def _evaluated_twice(make: MakeRun, wobble: Sequence[float]) -> None:
    for (repeat, more), schedule, accumulation in itertools.product(
        enumerate(wobble), ("cosine", "exponential"), (1, 20)
    ):
        ahead = schedule == "exponential"
        running = 0.5 + 0.1 * ahead - (0.2 - more / 20) * (accumulation == 20)
        _learn(make, schedule, accumulation, repeat, running, 0.5 + (0.1 + more) * ahead)


@case("accuracy_vs_batch_size")
def evaluations(make: MakeRun) -> None:
    """Two evaluations, decided in both"""
    _evaluated_twice(make, (0.0, 0.01, -0.01))


@case("accuracy_vs_batch_size")
def evaluations_that_vary(make: MakeRun) -> None:
    """Two evaluations, inconclusive in one"""
    _evaluated_twice(make, (0.0, 0.2, -0.2))


@case("accuracy_vs_batch_size")
def within_a_point(make: MakeRun) -> None:
    """A difference within one point is equivalent, though its interval excludes 0"""
    for (schedule, ahead), repeat in itertools.product(
        (("cosine", 0.0), ("exponential", 0.005)), range(3)
    ):
        _learn(make, schedule, 20, repeat, 0.5 + ahead + 0.001 * repeat * bool(ahead))


@case("time_to_accuracy")
def race(make: MakeRun) -> None:
    """Medians have no interval, so nobody is first"""
    for number in (1, 2, 4):
        rows = curve([0.2, 0.7])
        for one in rows:
            one.wall_s = 10.0 / number
            one.throughput_samples_per_s = one.samples / one.wall_s
        fields = {"dataset": "fashion_mnist", "model": "resnet8", **DDP}
        make(rows=rows, gpus_per_node=number, **fields)


@case("accuracy_by_library")
def libraries(make: MakeRun) -> None:
    """Three libraries on one and two ranks"""
    for (number, name), factor in itertools.product(
        enumerate(("torch", "tensorflow", "mxnet")), (1, 2)
    ):
        rows = curve([0.1, 0.6 + 0.1 * number - 0.01 * factor])
        about = {"dataset": "fashion_mnist", "model": "resnet8", **HOROVOD}
        make(rows=rows, framework=name, gpus_per_node=factor, **about)
