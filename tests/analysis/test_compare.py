"""What a study will resolve before it runs, and what it says afterwards."""

import re
from typing import Any

import numpy as np
import pytest

from ddl_core.errors import RecordError
from ddl_tools.analysis import design, estimates, pages
from ddl_tools.analysis.confirmation import beside
from ddl_tools.analysis.design import resolves, spread
from ddl_tools.analysis.figures import comparison
from ddl_tools.analysis.pages import compare
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.records.ledger import find_study
from ddl_tools.records.paths import Tree, committed, repeated
from ddl_tools.study import Study
from tests.analysis.conftest import MACHINE, SPEC, MakeRun, in_blocks

DDP: dict[str, Any] = {"strategy": "ddp"}
HOROVOD: dict[str, Any] = {"strategy": "horovod"}
SD = 0.2


def study(interleaved: bool = True, repeats: int = 1) -> Study:
    fields: dict[str, Any] = {"name": "laptop", "question": "?", "base": {**SPEC, "epochs": 9}}
    fields["axes"] = {"strategy": ["ddp", "horovod"]}
    fields["interleave"] = {"reference": DDP} if interleaved else None
    return Study.model_validate(fields | {"repeats": repeats})


@pytest.fixture(autouse=True)
def nothing_published(monkeypatch: pytest.MonkeyPatch, tree: Tree) -> None:
    """What is published must not decide what these tests find."""
    for module in (design, pages):
        monkeypatch.setattr(module, "committed", lambda: Tree(tree.root / "published"))
    monkeypatch.setattr(pages, "repeated", lambda: tree)
    monkeypatch.setattr(design, "host", lambda: MACHINE)


def measure(
    make_run: MakeRun,
    factor: float = 1.0,
    other: dict[str, Any] = HOROVOD,
    baseline: bool = True,
    **about: Any,
) -> None:
    """Write 24 starts of two on a drifting machine whose log ratios deviate by `factor` SD."""
    drift = np.linspace(10, 40, 24)
    logs = np.tile([1.0, -1.0], 12) * factor * SD * np.sqrt(23 / 24)
    if baseline:
        in_blocks(make_run, DDP, list(drift), **about)
    in_blocks(make_run, other, list(drift * np.exp(logs)), place=1, **about)


def publish(tree: Tree) -> None:
    (tree.root / "published").mkdir()
    tree.runs.rename(tree.root / "published" / "runs")


def test_the_spread_is_that_of_starts_not_of_the_drift(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run)
    found = spread(study(), tree)
    assert (found.usual, found.most) == pytest.approx((SD, design.SAME * SD))
    assert found.source == "study laptop on this machine"
    line = resolves(study(repeats=8), tree)
    # t of 7 degrees of freedom, 2.365, times 0.32 / sqrt(8), on the log scale
    assert "8 starts resolve a difference of 30.7% in 9 of 10 ratios" in line
    needed = re.search(r"(\d+) would resolve 5% \(`repeats`\)", line)
    assert 160 < int(needed[1]) < 180
    for repeats in (1, 2):  # two would give the ratio to 500 %: no number that anybody could use
        line = resolves(study(repeats=repeats), tree)
        assert "cannot give a usable interval" in line
        assert "inf" not in line


def test_one_noisy_configuration_or_study_does_not_decide(tree: Tree, make_run: MakeRun) -> None:
    """The source is named; without the study itself, three others are one."""
    for name, factor in (("search", 10.0), ("loaders", 0.1), ("libraries", 0.2)):
        assert spread(study(), tree) is None
        assert "not known" in resolves(study(), tree)
        measure(make_run, factor=factor, study=name)
    found = spread(study(), tree)
    assert (found.usual, found.most) == pytest.approx((0.2 * SD, design.OTHER * 0.2 * SD))
    assert found.source == "3 studies on this machine (libraries, loaders, search)"
    measure(make_run, factor=0.3)
    for name, factor in (("deepspeed", 0.3), ("single", 9.0)):
        measure(make_run, factor=factor, other={"strategy": name}, baseline=False)
    assert spread(study(), tree).usual == pytest.approx(0.3 * SD)


def test_a_few_starts_know_no_spread(tree: Tree, make_run: MakeRun) -> None:
    in_blocks(make_run, DDP, [10.0, 11.0, 12.0])
    in_blocks(make_run, HOROVOD, [20.0, 22.0, 25.0], place=1)
    assert spread(study(), tree) is None


def test_records_of_another_machine_tell_nothing(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run, system={**MACHINE, "cpu": "Another CPU"})
    assert spread(study(), tree) is None
    publish(tree)
    found = spread(study(), tree)  # better than none: what is published
    assert found.source == "study laptop as published"


def test_records_of_processors_tell_nothing_of_gpus(tree: Tree, make_run: MakeRun) -> None:
    measure(make_run)
    on_gpus = study().model_copy(update={"base": {**study().base, "device": "cuda"}})
    assert spread(on_gpus, tree) is None


def test_whole_runs_tell_nothing_of_other_days(tree: Tree, make_run: MakeRun) -> None:
    for repeat in range(21):
        make_run(20.0 * np.exp(0.1 * (-1) ** repeat), strategy="ddp", repeat=repeat)
    asked = study(interleaved=False, repeats=3)
    assert spread(asked, tree) is None
    assert "3 repeats not known, the study is not interleaved" in resolves(asked, tree)


@pytest.mark.slow
def test_forecasts_keep_what_they_promise_in_9_of_10_published_ratios(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the study itself as a source, and its second measurement with it."""
    published, windows = runs_table(committed()), windows_table(committed())
    again = runs_table(repeated()), windows_table(repeated())
    kept: dict[str, list[bool]] = {"same": [], "other": []}
    for name in published["study"].unique():
        asked, own = find_study(name, committed()), published["study"] == name
        if asked.interleave is None:
            continue
        for source, known in (("other", published[~own]), ("same", published[own])):
            monkeypatch.setattr(design, "runs_table", lambda _, known=known: known)
            monkeypatch.setattr(design, "windows_table", lambda *_: windows)
            found = spread(asked, tree)
            if found is None:  # a search on a GPU: few starts, and no other study of such a device
                continue
            for runs, epochs in ((published, windows), again)[source == "same" :]:
                points = comparison.points(
                    runs[runs["study"] == name], epochs[epochs["study"] == name], asked
                )
                for row in points[points["ratio_low"].notna()].to_dict("records"):
                    half = estimates.resolution(found.most, row["n"])
                    kept[source].append(row["ratio_high"] / row["ratio"] - 1 <= half)
    for source, ratios in kept.items():
        assert len(ratios) >= 40, source
        assert 0.9 <= np.mean(ratios) < 0.99, source


def test_compare_says_it_in_words(tree: Tree, make_run: MakeRun) -> None:
    for interleaved in (True, False):
        with pytest.raises(RecordError, match=r"no epochs to compare in .*`ddl study run`"):
            compare(study(interleaved), tree)
    measure(make_run)
    first, second = compare(study(), tree)[1]
    assert "throughput / throughput of PyTorch-DDP, n = 24 starts" in first
    assert second.startswith("  Horovod: 1.00 [0.92, 1.09], inconclusive;")


def test_without_interleaving_whole_runs_are_compared(tree: Tree, make_run: MakeRun) -> None:
    for repeat, factor in enumerate((1.0, 1.01, 0.99)):
        make_run(20 * factor, **DDP, repeat=repeat)
        make_run(10 * factor, **HOROVOD, repeat=repeat)
    make_run(40.0, strategy="deepspeed")
    first, *others = compare(study(interleaved=False), tree)[1]
    assert "throughput / throughput of PyTorch-DDP" in first
    assert "changes the fewest settings" in first
    assert first.endswith("n = 1 to 3 starts, whole runs")
    (row,) = comparison.points(runs_table(tree)).set_index("strategy").loc[["horovod"]].iloc
    interval = "{ratio:.2f} [{ratio_low:.2f}, {ratio_high:.2f}]".format(**row)
    assert others == [f"  Horovod: {interval}, faster", "  DeepSpeed: 0.50, fewer than 3 starts"]


def test_compare_names_what_differs(tree: Tree, make_run: MakeRun) -> None:
    """A configuration that differs from the baseline in a bucket's size alone."""
    in_blocks(make_run, DDP, [10.0, 11.0, 12.0])
    in_blocks(make_run, {**DDP, "ddp_bucket_mb": 10}, [20.0, 22.0, 24.0], place=1)
    first, second = compare(study(), tree)[1]
    assert "of bucket 25 MiB, n = " in first
    assert second.startswith("  bucket 10 MiB: 0.50 [")


@pytest.mark.parametrize(
    ("again", "counts"),
    [
        ((20.0, 10.0), (2, 2, 0, 0)),
        ((20.0, 20.0), (1, 1, 0, 1)),
        ((5.0, 20.0), (0, 0, 0, 2)),
        ((25.0, 10.0), (1, 1, 1, 0)),  # slower again, by another ratio: not confirmed
        ((20.0, None), (1, 1, 0, 0)),
    ],
)
def test_a_second_measurement_confirms_the_published_one_or_not(
    tree: Tree,
    make_run: MakeRun,
    again: tuple[float, float | None],
    counts: tuple[int, int, int, int],
) -> None:
    noise = np.array([1.0, 1.01, 0.99])

    def measure_three(horovod: float, deepspeed: float | None) -> None:
        in_blocks(make_run, DDP, list(10 * noise))
        in_blocks(make_run, HOROVOD, list(horovod * noise[::-1]), place=1)
        if deepspeed:
            took = list(deepspeed * noise[::-1])
            in_blocks(make_run, {"strategy": "deepspeed"}, took, place=2)

    measure_three(20.0, 10.0)
    published = Tree(tree.root / "published")
    published.root.mkdir()
    tree.runs.rename(published.runs)
    assert "published" not in "".join(compare(study(), published)[1])  # no second measurement yet
    measure_three(*again)
    for one, other in ((tree, published), (published, tree)):
        *_, last = compare(study(), one)[1]
        about, _, found = last.partition(": ")
        assert str(other.root) in about  # what the ratios above are compared with
        agree, confirmed, same, otherwise = counts
        compared = 2 if again[1] else 1
        assert re.match(f"{agree} of {compared} ratios? agrees? within their intervals", found)
        told = f"{confirmed} of {compared} decided ratios? (is|are) confirmed, {same} in the same"
        assert re.search(told, found)
        assert f" {otherwise} decided otherwise" in found
        assert ("second measurement" in about) == (one is published)
    if again[1]:
        drawn = published.figures / "laptop"
        drawn.mkdir(parents=True)
        points, others = (
            comparison.points(runs_table(one), windows_table(one)) for one in (published, tree)
        )
        beside(points, others).to_csv(drawn / "comparison.csv")
        counted, *named = pages.confirmations(published).split("\n\n")
        assert counted.endswith(f"| {agree} | {confirmed} | {same} | 0 | {otherwise} |")
        names = {"Horovod", "DeepSpeed"}
        alike = {"Horovod": again[0] == 20.0, "DeepSpeed": again[1] == 10.0}
        assert {name for name in names if name in "".join(named)} == {
            name for name in names if not alike[name]
        }
