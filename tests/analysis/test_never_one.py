"""Runs that differ in any field of `RunSpec` are never one row of a table, or one point."""

from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_tools.analysis.configurations import KEYS, configuration_table, specs, with_settings
from ddl_tools.analysis.figures import QUESTIONS, accuracy
from ddl_tools.analysis.question import Tables
from ddl_tools.analysis.tables import runs_table
from ddl_tools.cli.options import show_entries
from ddl_tools.launch.study import summary
from ddl_tools.names import IN_RUN_ID, label
from ddl_tools.records.identity import REPEATS
from ddl_tools.records.ledger import Entry
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import SPEC, MakeRun, epoch_row, evaluations
from tests.analysis.drawn import PAPER
from tests.fields import ALONE, changed, is_of_emulation, owner

FIELDS = [name for name in ALONE if name not in REPEATS and not is_of_emulation(name)]
# Where the two halves of a training are compared: each is of all runs that do the same half.
HALVES = ("loading_n", "training_n")


def two(field: str, **shared: Any) -> tuple[RunSpec, RunSpec]:
    return changed(field, **{name: SPEC[name] for name in SPEC if name != field} | shared)


def write(
    make_run: MakeRun,
    study: str,
    spec: RunSpec,
    wall_s: float = 10.0,
    top1: float = 0.1,
    status: str = "completed",
) -> None:
    """Write a run with all lines that its fields ask for."""
    rows = [epoch_row(epoch, wall_s=wall_s) for epoch in range(spec.epochs)]
    due = sorted(evaluations(spec.epochs, spec.eval_every)) if spec.work == "train" else []
    rows += [epoch_row(epoch, "eval", top1=top1, top5=1.0) for epoch in due]
    make_run(rows=rows, study=study, status=status, **spec.model_dump())


@pytest.mark.slow
def test_no_point_of_a_figure_is_of_both(tree: Tree, make_run: MakeRun) -> None:
    """The runs of a pair, which differ in one field, are in a study named after the field."""
    for field in FIELDS:
        for wall_s, spec in zip((10.0, 30.0), two(field), strict=True):
            write(make_run, field, spec, wall_s)
    runs = runs_table(tree)
    table = configuration_table(runs)
    assert table[table["n"] > 1]["setting"].tolist() == []
    assert not table.duplicated(KEYS).any()
    for name, question in QUESTIONS.items():
        points = question.points(Tables(runs, table, PAPER))
        counts = [column for column in points if column == "n" or column.endswith("_n")]
        for count in set(counts) - set(HALVES):
            assert points[points[count] > 1].to_dict("records") == [], name


@pytest.mark.slow
@pytest.mark.extended
def test_no_accuracy_is_a_mean_of_both(tree: Tree, make_run: MakeRun) -> None:
    """Two fields vary, the other one makes it a study of accuracy."""
    for field in FIELDS:
        fixed = field in ("optimizer", "framework") or "optimizer" in owner(field)
        other = "schedule" if fixed else "optimizer"
        values = ("cosine", "constant") if other == "schedule" else ("sgd", "lars")
        pairs = [two(field, **{other: value}) for value in values]
        specs = [spec for pair in pairs for spec in pair]
        for top1, spec in zip((0.1, 0.2, 0.3, 0.4), specs, strict=True):
            write(make_run, field, spec, top1=top1)
    runs = runs_table(tree)
    points = accuracy.batch_points(runs, PAPER)
    ours = points[points["source"] == "measured"]
    assert not (ours["n"] > 1).any()
    assert not ours.duplicated(["study", "label", "global_batch_size"]).any()
    found = ours[ours["n"] == 1].groupby("study").size().reindex(FIELDS, fill_value=0)
    # What only loads has no accuracy.
    wanted = dict.fromkeys(FIELDS, 4) | {"work": 2}
    unlike = {field for field, n in found.items() if n != wanted[str(field)]}
    assert unlike <= {"profile_steps", "min_steps_per_epoch"}


def test_every_list_and_row_of_a_notebook_tells_them_apart(tree: Tree, make_run: MakeRun) -> None:
    """Without the last part of their names, which is a hash."""
    for field in FIELDS:
        pair = two(field)
        folder = tree.study("laptop")
        entries = [Entry(spec, folder / spec.run_id, "failed", "lost") for spec in pair]
        for spec in pair:
            write(make_run, field, spec, status="failed")
        for text in (show_entries(entries), summary(entries)):
            for spec in pair:
                text = text.replace(spec.run_id.rpartition("-")[2], "")
            lines = [line for line in text.splitlines() if "lost" in line]
            assert len(set(lines)) == len(lines) == 2, field
    runs = runs_table(tree)
    for _, study in runs.groupby("study"):
        names = study["run_id"].str.rpartition("-")[0] + label(specs(study), IN_RUN_ID)
        assert names.is_unique
    runs = runs[runs["study"] != "second_start"]  # of the same setting; `ended_runs` leaves it out
    assert (with_settings(runs).groupby(KEYS).size() == 1).all()
