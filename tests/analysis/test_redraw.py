"""From records to files: which are drawn, which are removed, and what is said of the rest."""

import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from ddl_core.errors import RecordError
from ddl_tools.analysis import result_page, tables
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.plot.canvas import save_figure
from ddl_tools.analysis.question import OF_NO_RUN, Question, Tables
from ddl_tools.analysis.redraw import Redrawn, pictures, redraw, redraw_probes, tables_of
from ddl_tools.analysis.result import load
from ddl_tools.analysis.tables import runs_table, write_tables
from ddl_tools.records.damage import REMEDY
from ddl_tools.records.ledger import write_study
from ddl_tools.records.paths import FIGURES, ProbeFiles, RunFiles, Tree
from ddl_tools.records.run import RunRecord
from ddl_tools.study import Study
from tests.analysis.conftest import SPEC, MakeRun, curve
from tests.analysis.drawn import draw_only, points_of, words
from tests.launch.running import ddl

# These show what is stated; the others nothing but runs.
OF_THE_PAPER = {"efficiency", "kernel_shares", "advice", "schedules",
                "accuracy_vs_batch_size"}  # fmt: skip


def shown(done: Redrawn) -> dict[str, set[str]]:
    """Return the figures in each folder."""
    found: dict[str, set[str]] = {}
    for path in done.files:
        found.setdefault(path.parent.name, set()).add(path.stem)
    return found


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw three figures alone, one of them the paper's."""
    draw_only(monkeypatch, "comparison", "loader_bound", "efficiency")


def several(make_run: MakeRun, **fields: Any) -> None:
    """Write three starts of two configurations: the least that a figure compares."""
    for strategy, repeat in itertools.product(("single", "ddp"), range(3)):
        make_run(strategy=strategy, repeat=repeat, **fields)


def test_without_runs_the_paper_is_drawn(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, *QUESTIONS)
    tree.runs.mkdir(parents=True)
    done = redraw(tree, figures=tree.figures)
    assert shown(done) == {"paper": OF_THE_PAPER}
    assert len(done.files) == 4 * len(OF_THE_PAPER) - 3, "the accuracies of the advice are drawn"
    table = pd.read_csv(tree.figures / "paper" / "efficiency.csv")
    assert set(table["source"]) == {"stated", "derived"}
    assert done.summary() == []


def test_a_folder_without_runs_is_no_folder_of_results(tree: Tree, make_run: MakeRun) -> None:
    run = make_run()
    before = sorted(tree.root.rglob("*"))
    reasons = {run.parent: "holds no runs/", tree.root / "none": "there is no folder of results"}
    for wrong, reason in reasons.items():
        with pytest.raises(RecordError, match=reason):
            redraw(Tree(wrong), figures=wrong / "figures")
    assert sorted(tree.root.rglob("*")) == before


def test_a_study_computes_nothing_of_the_paper(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(tables: Tables) -> pd.DataFrame:
        raise AssertionError("of no run")

    stated = {name for name, one in QUESTIONS.items() if one.needs == OF_NO_RUN}
    assert stated
    for name in stated:
        monkeypatch.setattr(QUESTIONS[name], "points", computed)
    make_run()
    redraw(tree, figures=tree.figures, studies=["laptop"])


@pytest.mark.usefixtures("few_figures")
def test_runs_that_a_corrected_study_lacks_are_not_drawn(tree: Tree, make_run: MakeRun) -> None:
    dead = make_run(status="failed", rows=[], eval_images=8)
    now = make_run(eval_images=6, strategy="ddp")
    make_run(study="other")
    base = {**SPEC, "eval_images": 6, "strategy": "ddp"}
    write_study(Study(name="laptop", question="Who is first?", base=base, repeats=1), tree)
    done = redraw(tree, figures=tree.figures)
    assert "laptop (1 run: 1 completed): " in "\n".join(done.summary())
    table = pd.read_csv(tree.figures / "laptop" / "comparison.csv")
    assert table[["strategy", "question"]].values.tolist() == [["ddp", "Who is first?"]]
    assert pd.read_csv(tree.tables / "laptop.csv")["run_id"].tolist() == [now.name]
    assert dead.is_dir()
    page = (tree.figures / "laptop" / "README.md").read_text()
    assert page.startswith("# Study `laptop`\n")
    assert "\n\nWho is first?\n\n" in page
    assert "Runs not drawn: 1 not planned any more." in page


@pytest.mark.usefixtures("few_figures")
def test_of_a_study_that_plans_none_of_its_runs_the_reason_is_named(
    tree: Tree, make_run: MakeRun
) -> None:
    run = make_run()
    make_run(study="other")
    redraw(tree, figures=tree.figures)
    assert (tree.figures / "laptop" / "comparison.csv").is_file()
    base = {**SPEC, "eval_images": 6}
    write_study(Study(name="laptop", question="Who is first?", base=base, repeats=1), tree)
    shown = ddl("figures", "--results", tree.root, status=0).output
    (line,) = [line for line in shown.splitlines() if line.startswith("laptop ")]
    assert "no run of the study as it is now" in line
    assert (tree.figures / "other" / "comparison.csv").is_file()
    assert not (tree.figures / "laptop").exists()  # figures of runs that are not the study's
    assert "laptop/" not in (tree.figures / "README.md").read_text()
    assert RunFiles(run).record.is_file()
    assert "1 whole" in ddl("study", "verify", "laptop", "--results", tree.root, status=0).output


@pytest.mark.usefixtures("few_figures")
def test_a_record_of_a_missing_plug_in_is_not_called_damaged(tree: Tree, make_run: MakeRun) -> None:
    make_run()
    other = make_run(strategy="ddp")
    record = RunFiles(other).record
    content = json.loads(record.read_text())
    content["spec"]["strategy"] = "at_once"
    content["provenance"]["packages"] = {"torch": "2.13.0", "ddl-ours": "0.1"}
    record.write_text(json.dumps(content))
    done = redraw(tree, figures=tree.figures)
    (line,) = done.damaged
    assert "at_once" in line
    assert "install ddl-ours==0.1" in line
    assert REMEDY not in line
    assert "torch" not in line
    assert "1 completed, 1 unknown" in "\n".join(done.summary())


@pytest.mark.usefixtures("few_figures")
def test_a_folder_whose_name_is_no_name_is_no_study(tree: Tree, make_run: MakeRun) -> None:
    make_run()
    make_run(study="$\\frac{$")
    assert tree.studies() == ["laptop"]
    done = redraw(tree, figures=tree.figures)
    assert done.damaged == []
    (warning,) = done.kept
    assert "is no study" in warning
    assert {*shown(done)} == {"laptop", "paper"}


@pytest.mark.usefixtures("few_figures")
def test_a_record_of_which_no_row_can_be_made_is_named_and_left_out(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run()
    odd, real = make_run(strategy="ddp"), tables.identity.description

    def fails(record: RunRecord) -> dict[str, Any]:
        return real(record) if record.run_id != odd.name else {}[record.run_id]

    monkeypatch.setattr(tables.identity, "description", fails)
    done = redraw(tree, figures=tree.figures)
    (line,) = done.damaged
    assert line.startswith(f"{odd}: run.json: cannot be used: KeyError")
    assert "1 completed, 1 damaged" in "\n".join(done.summary())
    verified = ddl("study", "verify", "laptop", "--results", tree.root, status=1)
    assert "1 whole, 1 damaged" in verified.output


@pytest.mark.usefixtures("few_figures")
def test_a_figure_that_cannot_be_drawn_is_named_and_the_others_are_drawn(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run()
    make_run(study="other")
    kind = type(QUESTIONS["comparison"])
    real = kind.points

    def fails(self: Question, found: Tables) -> pd.DataFrame:
        return real(self, found) if found.runs["study"].eq("other").all() else 1 / 0

    monkeypatch.setattr(kind, "points", fails)
    done = redraw(tree, figures=tree.figures)
    (line,) = done.damaged
    assert line.startswith("laptop/comparison cannot be drawn: ZeroDivisionError")
    assert "comparison" in shown(done)["other"]


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("notes", [b"study,remark\nlaptop,x\n", b"\xff", b"", b"\0", b'"'])
def test_notes_that_are_no_table_are_named(notes: bytes, tree: Tree, make_run: MakeRun) -> None:
    make_run()
    tree.notes.write_bytes(notes)
    done = redraw(tree, figures=tree.figures)
    (line,) = done.damaged
    assert "notes.csv is no table with the columns study and note" in line
    assert "laptop" in shown(done)


def put_figure(stem: Path) -> dict[Path, bytes]:
    """Write the files of a figure, and return them."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "pdf", "png", "csv")]
    for path in paths:
        path.write_bytes(b"drawn by somebody")
    return {path: path.read_bytes() for path in paths}


@pytest.mark.usefixtures("few_figures")
def test_figures_without_runs_are_removed(tree: Tree, make_run: MakeRun) -> None:
    make_run()
    make_run(study="gone")
    other = tree.figures / "gone" / "mine.png"
    redraw(tree, figures=tree.figures)
    put_figure(tree.figures / "laptop" / "retired")
    page = tree.figures / "laptop" / "README.md"
    page.write_text(page.read_text() + "\nFiles: [CSV](retired.csv), [SVG](retired.svg).\n")
    other.write_bytes(b"drawn by somebody")
    shutil.rmtree(tree.study("gone"))
    done = redraw(tree, figures=tree.figures)
    there = {*tree.figures.glob("*/*"), *tree.figures.glob("*.*")}
    assert there == {*done.files, *done.pages, other}
    reasons = "\n".join(done.summary(reasons=True))
    assert "nothing to show in laptop/loader_bound: needs" in reasons


@pytest.mark.usefixtures("few_figures")
def test_one_start_of_each_configuration_is_a_table(tree: Tree, make_run: MakeRun) -> None:
    one = {make_run(8.0, strategy=strategy) for strategy in ("single", "ddp")}
    page, picture = (tree.figures / "laptop" / name for name in ("README.md", "comparison.png"))
    more = [
        make_run(8.0 + 0.1 * repeat, strategy=strategy, repeat=repeat)
        for strategy in ("single", "ddp")
        for repeat in (1, 2)
    ]
    redraw(tree, figures=tree.figures)
    assert "](comparison.png)" in page.read_text()
    assert picture.is_file()
    for again in more:
        shutil.rmtree(again)
    done = redraw(tree, figures=tree.figures)
    assert {path.name for path in page.parent.iterdir()} == {"README.md", "comparison.csv"}
    assert len(pd.read_csv(tree.figures / "laptop" / "comparison.csv")) == len(one)
    assert "1.00 (fewer than 3 starts)" in page.read_text()
    assert "n = 1 start; commit" in page.read_text()
    assert ": fewer than 3 starts." in (tree.figures / "README.md").read_text()
    assert pictures(done, "laptop") == []
    answer, *rest = load("comparison", str(tree.root), "laptop").parts
    assert "n = 1 start" in answer
    assert [len(table) for table in rest] == [2]


@pytest.mark.usefixtures("few_figures")
def test_published_figures_of_a_study_that_is_gone_are_removed(tree: Tree) -> None:
    tree.runs.mkdir(parents=True)
    for published in FIGURES.glob("*/"):
        folder = tree.figures / f"{published.name}_gone"
        folder.mkdir(parents=True)
        shutil.copy(published / "README.md", folder)
        for figure in published.glob("*.png"):
            put_figure(folder / figure.stem)
    done = redraw(tree, figures=tree.figures)
    assert {*tree.figures.glob("*/*")} == {*done.files, *done.pages} - {tree.figures / "README.md"}
    assert [path.name for path in tree.figures.glob("*/")] == ["paper"]


@pytest.mark.usefixtures("few_figures")
def test_figures_of_somebody_else_stay(tree: Tree, make_run: MakeRun) -> None:
    """`ddl advise --figure` writes the same kinds of files."""
    make_run()
    make_run(study="gone")
    stems = ("mine/plan", "laptop/plan", "gone/plan", "paper/plan", "plan", "all_reduce")
    before = {}
    for stem in stems:
        before |= put_figure(tree.figures / stem)
    redraw(tree, figures=tree.figures)
    shutil.rmtree(tree.study("gone"))
    redraw(tree, figures=tree.figures)
    assert {path: path.read_bytes() for path in before if path.exists()} == before
    assert {*tree.figures.glob("gone/*")} == {*before} & {*tree.figures.glob("gone/*")}


@pytest.mark.usefixtures("few_figures")
def test_a_page_of_somebody_else_stays(tree: Tree, make_run: MakeRun, tmp_path: Path) -> None:
    make_run()
    make_run(study="other")
    make_run(study="linked")
    pages = [tree.figures / "README.md", tree.figures / "laptop" / "README.md"]
    for page in pages:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_bytes(b"# My thesis \xff")
    redraw(tree, figures=tree.figures, studies=["other"])
    own = tree.figures / "other" / "README.md"
    link = tree.figures / "linked" / "README.md"
    link.parent.mkdir()
    link.symlink_to(own)
    done = redraw(tree, figures=tree.figures)
    assert all(page.read_bytes() == b"# My thesis \xff" for page in pages)
    assert link.is_symlink()
    assert not {*pages, link} & {*done.pages}
    assert own in done.pages
    for page in (*pages, link):
        (line,) = [line for line in done.summary() if str(page) in line]
        assert "move" in line
    assert (tree.figures / "laptop" / "comparison.csv").is_file()


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("name", ["figures", "tables", "tables/windows", "figures/laptop"])
def test_a_link_in_place_of_an_output_folder_is_not_followed(
    tree: Tree, make_run: MakeRun, tmp_path: Path, name: str
) -> None:
    make_run()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "laptop.csv").write_text("mine")
    before = put_figure(victim / "comparison") | {victim / "laptop.csv": b"mine"}
    link = tree.root / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    with pytest.raises(RecordError, match=f"{name} is a symbolic link"):
        redraw(tree, figures=tree.figures)
    assert {path: path.read_bytes() for path in victim.rglob("*")} == before
    if name == "figures":
        with pytest.raises(RecordError, match="figures is a symbolic link"):
            redraw_probes(tree, figures=tree.figures)


@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize(
    "name",
    ["tables/laptop.csv", "tables/windows/laptop.csv", "figures/laptop/comparison.csv",
     "figures/laptop/comparison.png"],
)  # fmt: skip
def test_a_file_of_somebody_else_is_not_replaced(tree: Tree, make_run: MakeRun, name: str) -> None:
    make_run()
    path = tree.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(RecordError, match=rf"{name} was not written by .*move it away"):
        redraw(tree, figures=tree.figures)
    assert path.read_text() == "mine"
    path.unlink()
    redraw(tree, figures=tree.figures)
    redraw(tree, figures=tree.figures)


@pytest.mark.usefixtures("few_figures")
def test_an_unfinished_drawing_is_drawn_anew(tree: Tree, make_run: MakeRun) -> None:
    make_run()
    redraw(tree, figures=tree.figures)
    (tree.figures / "laptop" / "README.md").unlink()
    redraw(tree, figures=tree.figures)


@pytest.mark.usefixtures("few_figures")
def test_what_is_drawn_may_go_elsewhere(tree: Tree, make_run: MakeRun, tmp_path: Path) -> None:
    make_run()
    before = sorted(tree.root.rglob("*"))
    (tmp_path / "disk").mkdir()
    to = tmp_path / "mine"
    to.symlink_to(tmp_path / "disk")
    ddl("figures", "--results", tree.root, "--to", to)
    assert sorted(tree.root.rglob("*")) == before
    assert (to / "tables" / "laptop.csv").is_file()
    assert (to / "figures" / "laptop" / "comparison.csv").is_file()
    page = to / "figures" / "laptop" / "README.md"
    assert (page.resolve().parent / "../../tables/laptop.csv").is_file()
    assert "(../../tables/laptop.csv)" in page.read_text()


@pytest.mark.usefixtures("few_figures")
def test_what_a_linked_folder_of_no_study_holds_stays(tree: Tree, tmp_path: Path) -> None:
    tree.runs.mkdir(parents=True)
    victim = tmp_path / "victim"
    before = put_figure(victim / "comparison")
    shutil.copy(FIGURES / "laptop" / "README.md", victim)
    tree.figures.mkdir()
    (tree.figures / "mine").symlink_to(victim)
    redraw(tree, figures=tree.figures)
    assert {*victim.iterdir()} == {*before, victim / "README.md"}


@pytest.mark.usefixtures("few_figures")
def test_one_study_is_drawn_and_nothing_else_is_touched(tree: Tree, make_run: MakeRun) -> None:
    make_run()
    several(make_run, study="other")
    done = redraw(tree, figures=tree.figures, studies=["other"])
    assert set(shown(done)) == {"other"}
    assert [path.name for path in tree.figures.iterdir()] == ["other"]
    assert [path.name for path in tree.tables.glob("*.csv")] == ["other.csv"]
    assert {path.stem for path in pictures(done, "other")} == shown(done)["other"]
    with pytest.raises(RecordError, match=r"study 'x' in .*; choose one of: laptop, other"):
        redraw(tree, figures=tree.figures, studies=["x"])


@pytest.mark.usefixtures("few_figures")
def test_a_study_called_paper_does_not_lie_with_the_papers(tree: Tree, make_run: MakeRun) -> None:
    several(make_run, study="paper")
    make_run(study="lost", status="failed", rows=[])
    done = redraw(tree, figures=tree.figures)
    assert set(shown(done)) == {"paper", "paper+"}
    assert shown(done)["paper"] == {"efficiency"}
    assert pictures(done, "paper")[0].parent.name == "paper+"
    assert "lost (1 run: 1 failed): IN NO FIGURE" in done.summary()


def test_accuracies_that_all_diverged_are_shown(tree: Tree, make_run: MakeRun) -> None:
    for schedule in ("step", "cosine"):
        make_run(rows=curve([0.1], loss=math.nan), schedule=schedule)
    name = "accuracy_vs_batch_size"
    assert answered(tree, name) == [name]
    said = words(QUESTIONS[name].draw(points_of(name, runs_table(tree))))
    assert "Diverged: 2 runs." in said


DAMAGES = {
    "record": lambda files: files.record.write_text("{"),
    "spec": lambda files: files.record.write_text(
        files.record.read_text().replace('"image_size":96', '"image_size":64')
    ),
    "lines": lambda files: files.epochs.write_text(files.epochs.read_text()[:-200]),
    "no lines": lambda files: files.epochs.unlink(),
}


@pytest.mark.usefixtures("few_figures")
def test_damaged_records_are_named_and_the_others_are_drawn(tree: Tree, make_run: MakeRun) -> None:
    make_run(study="other")
    make_run()
    broken = [make_run(strategy="ddp", repeat=repeat) for repeat in range(len(DAMAGES))]
    for run, damage in zip(broken, DAMAGES.values(), strict=True):
        damage(RunFiles(run))
    probe = ProbeFiles(tree.probes / "here")
    probe.directory.mkdir(parents=True)
    probe.record.write_text("{")
    done = redraw(tree, figures=tree.figures)
    (unread,) = [line for line in done.damaged if "probe.json" in line]
    for line, run in zip(sorted({*done.damaged} - {unread}), sorted(broken), strict=True):
        assert line.startswith(f"{run}: ")
        assert line.endswith(REMEDY)
    assert "laptop (5 runs: 1 completed, 4 damaged): " in "\n".join(done.summary())
    assert shown(done)["laptop"] == shown(done)["other"]
    table = pd.read_csv(tree.figures / "laptop" / "comparison.csv")
    assert table["strategy"].tolist() == ["single"]
    assert "Runs not drawn: 4 damaged" in (tree.figures / "laptop" / "README.md").read_text()
    assert "damaged" not in (tree.figures / "other" / "README.md").read_text()


def test_files_hold_no_date_and_no_program_and_numbers_of_six_digits(tmp_path: Path) -> None:
    figure, stem = Figure(figsize=(1, 1)), tmp_path / "new" / "small"
    figure.add_subplot().plot([1, 2])
    for path in save_figure(figure, pd.DataFrame({"value": [1 / 3, None]}), stem):
        content = path.read_bytes()
        for word in (b"CreationDate", b"dc:date", b"Matplotlib v", b"Software", b"matplotlib.org"):
            assert word not in content, (path.name, word)
    assert stem.with_suffix(".csv").read_bytes() == b'value\n0.333333\n""\n'


def test_the_notes_of_a_tree_are_those_of_their_study(tree: Tree) -> None:
    tree.root.mkdir(exist_ok=True)
    tree.notes.write_text('study,note\nlaptop,"One run had half of the machine."\n')
    assert result_page.notes(tree, "laptop") == ["One run had half of the machine."]
    assert result_page.notes(tree, "other") == []


def answered(tree: Tree, *names: str) -> list[str]:
    """Return which of these figures the runs of the laptop study have an answer for."""
    tables = tables_of(tree, "laptop", *write_tables(tree, "laptop"))
    asked = ((name, QUESTIONS[name]) for name in names)
    return [name for name, one in asked if one.answered_by(one.points(tables), of_runs=True)]


def test_a_curve_needs_three_sizes(tree: Tree, make_run: MakeRun) -> None:
    curves = ["throughput_vs_workers", "efficiency", "throughput_vs_batch_size"]
    for size, drawn in ((1, []), (2, []), (4, curves)):
        make_run(20 / size, strategy="ddp", gpus_per_node=size)
        make_run(20 / size, strategy="horovod", gpus_per_node=2, local_batch_size=16 * size)
        assert answered(tree, *curves) == drawn


def test_a_loader_without_a_bound_has_no_figure_of_bounds(tree: Tree, make_run: MakeRun) -> None:
    names = ["loader_bound", "comparison"]
    make_run()
    assert answered(tree, *names) == ["comparison"]
    make_run(loader="synthetic")
    make_run(work="load")
    assert answered(tree, *names) == names
