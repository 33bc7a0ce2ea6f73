"""Pages of results: every figure with its answer, caption and table; links that lead on."""

import re
from pathlib import Path

import numpy as np
import pytest

from ddl_tools.analysis.redraw import redraw
from ddl_tools.analysis.result import load
from ddl_tools.records.ledger import write_study
from ddl_tools.records.paths import FIGURES, Tree
from ddl_tools.study import Study
from tests.analysis.conftest import CODE, GPU, MACHINE, SPEC, MakeRun, in_blocks
from tests.analysis.drawn import draw_only
from tests.analysis.emulated import emulate
from tests.analysis.hostile import EVIL, alive, formulas, rendered, shown

LINK = re.compile(r"\]\(([^)#]+)\)")
PAGES = sorted(FIGURES.glob("*/README.md"))


def links(page: Path) -> set[str]:
    return set(LINK.findall(page.read_text(encoding="utf-8")))


def test_the_index_leads_to_each_page_and_each_page_shows_all_figures() -> None:
    index = FIGURES / "README.md"
    assert {FIGURES / link for link in links(index)} == set(PAGES)
    for page in PAGES:
        found = {page.parent / link for link in links(page)}
        assert {*page.parent.glob("*.png"), *page.parent.glob("*.csv")} <= found
        assert [link for link in found if not link.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_each_figure_has_an_answer_in_numbers_and_a_short_table(page: Path) -> None:
    _, *sections = page.read_text(encoding="utf-8").split("\n## ")
    assert sections
    for section in sections:
        lines = section.splitlines()
        assert lines[0].endswith("?")
        answers = [line for line in lines if line.startswith("- ")]
        assert 1 <= len(answers) <= 4
        assert all(re.search(r"\d", line) for line in answers)
        rows = [line for line in lines if line.startswith("| ")][2:]
        assert 1 <= len(rows) <= 10
        assert "nan" not in section


def test_page_of_a_study(tree: Tree, laptop: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "comparison", "efficiency_emulated")
    for nodes in (1, 2, 4):
        emulate(laptop, nodes=nodes)
    emulate(laptop, nodes=2, repeat=1, other_cpu_share=0.5)
    done = redraw(tree, figures=tree.figures)
    page = (tree.figures / "laptop" / "README.md").read_text()
    assert tree.figures / "laptop" / "README.md" in done.pages
    assert "18 completed](../../tables/laptop.csv)" in page
    assert "on Example(R) CPU @ 2.00GHz (2 cores); code `01234567`." in page
    assert "](comparison.png)" in page
    assert "Throughput by strategy, relative to " in page
    page = (tree.figures / "emulation" / "README.md").read_text()
    assert "Emulated, not measured on a cluster ([how](" in page
    assert "Rejected and not drawn: 1 run." in page


def test_page_names_the_settings_of_all_runs(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch of a small set takes its images several times: a loader may find them in memory."""
    draw_only(monkeypatch, "comparison")
    about = {"train_images": 64, "min_steps_per_epoch": 8, "image_size": 24}
    for strategy in ("single", "ddp"):
        make_run(strategy=strategy, local_batch_size=16, **about)
    make_run(study="other", image_size=24, local_batch_size=16)
    make_run(study="other", image_size=24, local_batch_size=32)
    redraw(tree, figures=tree.figures)
    page, other = (
        (tree.figures / name / "README.md").read_text().split("\n## ")[0]
        for name in ("laptop", "other")
    )
    assert ", 24 px, batch 16, fp32." in page
    assert "read the same 64 images (sample set) 2 times in an epoch" in page
    assert ", 24 px, fp32." in other
    assert "times in an epoch" not in other


@pytest.mark.parametrize("speeds", [(1000.0, 1050.0, None), (1000.0, 1300.0, None)])
def test_page_names_a_machine_that_was_not_as_fast_at_each_start(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, speeds: tuple[float | None, ...]
) -> None:
    """Three machines of one name are one to their name alone."""
    draw_only(monkeypatch, "comparison")
    for repeat, speed in enumerate(speeds):
        for strategy in ("ddp", "horovod"):
            make_run(strategy=strategy, repeat=repeat, system={**MACHINE, "speed_mb_per_s": speed})
    redraw(tree, figures=tree.figures)
    page = (tree.figures / "laptop" / "README.md").read_text()
    assert ("differed by 30 %" in page) == ("1,300" in page) == (speeds[1] == 1300)


def test_page_of_a_study_that_was_measured_again(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "comparison")
    noise = np.array([1.0, 1.01, 0.99])

    def measure(horovod: float, deepspeed: float, spread: float) -> None:
        in_blocks(make_run, {"strategy": "ddp"}, list(10 * noise))
        in_blocks(make_run, {"strategy": "horovod"}, list(horovod * noise), place=1)
        in_blocks(make_run, {"strategy": "deepspeed"}, list(deepspeed * noise**spread), place=2)

    measure(20.0, 10 / 1.2, 20)  # the second one first: it is moved to its place
    (tree.root / "second").mkdir()
    tree.runs.rename(tree.root / "second" / "runs")
    measure(12.5, 10 / 1.2, 1)
    redraw(tree, figures=tree.figures)
    page = (tree.figures / "laptop" / "README.md").read_text()
    _, answer = (line for line in page.splitlines() if line.startswith("- "))
    assert "Horovod 0.80 [0.80, 0.80] (slower, 0.50 [0.50, 0.50] when measured again)" in answer
    assert "DeepSpeed 1.20 [1.20, 1.20] (faster, inconclusive when measured again)" in answer
    _, note = page.split("> **Note** [Measured again](")
    assert (
        "1 of 2 ratios agrees within their intervals; 0 of 2 decided ratios are confirmed" in note
    )
    assert "1 in the same direction only" in note
    (horovod,) = (line for line in note.splitlines() if line.startswith("> - Horovod"))
    assert horovod.endswith("0.50 [0.50, 0.50] (slower, intervals do not overlap)")
    assert "> - DeepSpeed 1.20 [1.20, 1.20] (faster), measured again 1." in note
    index = (tree.figures / "README.md").read_text()
    assert "1 of 2 ratios agrees and 0 of 2 decided ones are confirmed." in index


def test_texts_of_records_are_shown_and_are_no_markup(
    tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "comparison")
    for number, strategy in enumerate(("single", "ddp")):
        system = {**(GPU if number else MACHINE), "cpu": EVIL}
        system |= {"accelerator": EVIL} if number else {}
        about = {"system": system, "provenance": {**CODE, "git_commit": f"`<b>{number}"}}
        make_run(strategy=strategy, **about)
    write_study(Study(name="laptop", question=EVIL, base=SPEC), tree)
    tree.notes.write_text('study,note\nlaptop,"<script>note()</script>"\n')
    done = redraw(tree, figures=tree.figures)
    assert len(done.pages) == 2
    for page in done.pages:
        html = rendered(page.read_text().replace("<!-- written by", "").replace("by hand -->", ""))
        assert alive(html) == formulas(html) == []
    words = " ".join(EVIL.split())
    page = (tree.figures / "laptop" / "README.md").read_text()
    assert shown(rendered(page)).count(words) >= 2
    assert page.splitlines()[0] == "# Study `laptop`"
    result = load("comparison", str(tree.root), "laptop")
    texts = [result.answer, *result.parts]
    found = [one._repr_markdown_() for one in texts if hasattr(one, "_repr_markdown_")]
    assert len(found) == 2
    html = rendered("\n\n".join(found))
    assert alive(html) == formulas(html) == []
    table = result.parts[-1]
    assert alive(table._repr_html_(), "div", "style") == []
