"""Emulated runs have one figure, which says so, and stand in no other."""

import itertools

import pandas as pd
import pytest

from ddl_core.config import RunSpec
from ddl_tools.analysis.configurations import ended_runs, with_settings
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.figures.emulated import emulated_points as points
from ddl_tools.analysis.redraw import redraw
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.emulated import calculated_s
from tests.analysis.conftest import SPEC, MakeRun
from tests.analysis.drawn import configurations, draw_only, points_of, words
from tests.analysis.emulated import IMAGES, emulate
from tests.fields import ALONE, EMULATED, changed, is_of_emulation

# All but that of which each value is a panel.
FIELDS = [one for one in ALONE if is_of_emulation(one) and one != "emu_link_mbit"]


def table_of(tree: Tree) -> pd.DataFrame:
    return points(runs_table(tree))


def test_efficiency_is_throughput_per_rank_over_that_of_one(tree: Tree, make_run: MakeRun) -> None:
    for repeat, noise in enumerate((0.98, 1.0, 1.02)):
        emulate(make_run, noise, repeat=repeat)
        emulate(make_run, 0.8 * noise, nodes=4, repeat=repeat)
    table = table_of(tree)
    assert table["world_size"].tolist() == [1, 4]
    assert table["value"].tolist() == pytest.approx([1, 0.8])
    assert table["n"].tolist() == [3, 3]
    assert pd.isna(table["low"].iloc[0])
    assert table["low"].iloc[1] < 0.8 < table["high"].iloc[1]


def test_the_calculated_efficiency_is_shown_beside(tree: Tree, make_run: MakeRun) -> None:
    """Of DDP: nothing knows how a slow rank, or FSDP, communicates."""
    for nodes, fields in ((1, {}), (2, {}), (2, {"emu_straggler": 1.2})):
        emulate(make_run, nodes=nodes, **fields)
        emulate(make_run, nodes=nodes, strategy="fsdp", **fields)
    table = table_of(tree)
    known = table[table["calculated"].notna()]
    assert known[["strategy", "world_size"]].to_numpy().tolist() == [["ddp", 2]]
    spec = RunSpec(**{**SPEC, **EMULATED, "nodes": 2})
    step_s = 10.0 * spec.local_batch_size / IMAGES
    predicted_s = calculated_s(spec, step_s, 0.98 * spec.emu_link_mbit)  # measured, see `emulate`
    assert known["calculated"].tolist() == pytest.approx([step_s / predicted_s])
    assert "Crosses: calculated" in words(QUESTIONS["efficiency_emulated"].draw(table))


def test_sizes_are_those_of_the_network_that_is_emulated(tree: Tree, make_run: MakeRun) -> None:
    for bucket_mb, nodes in itertools.product((25, 5), (1, 2)):
        emulate(make_run, nodes=nodes, emu_shrink=64, ddp_bucket_mb=bucket_mb / 64)
    lines = {"PyTorch-DDP, bucket 25 MiB", "PyTorch-DDP, bucket 5 MiB"}
    assert set(table_of(tree)["line"]) == lines


def test_one_rank_is_the_base_of_every_rate(tree: Tree, make_run: MakeRun) -> None:
    emulate(make_run)
    for mbit, efficiency in ((50, 0.9), (25, 0.7)):
        emulate(make_run, efficiency, nodes=2, emu_link_mbit=mbit)
    table = table_of(tree)
    assert table["panel"].tolist() == [
        *["links of 50 Mbit/s, step 1 s (123 Gbit/s)"] * 2,
        *["links of 25 Mbit/s, step 1 s (61.6 Gbit/s)"] * 2,
    ]
    assert table["value"].tolist() == pytest.approx([1, 0.9, 1, 0.7])


def test_links_are_named_with_the_step_that_they_wait_for(tree: Tree, make_run: MakeRun) -> None:
    """Half the rate beside steps twice as long represents the same link."""
    for mbit, step_ms in ((6, 5000), (3, 10000)):
        for nodes in (1, 2):
            about = {"emu_link_mbit": mbit, "emu_step_ms": step_ms, "local_batch_size": 64}
            emulate(make_run, nodes=nodes, emu_shrink=64, **about)
    table = table_of(tree)
    assert table["represents_gbit"].tolist() == pytest.approx([18.5] * 4, rel=0.01)
    names = set(table["panel"])
    assert {name.split("links of ")[1] for name in names} == {
        "6 Mbit/s, step 5 s (18.5 Gbit/s)",
        "3 Mbit/s, step 10 s (18.5 Gbit/s)",
    }
    title, first, second = QUESTIONS["efficiency_emulated"].sentences(table)
    assert " nodes; 3 Mbit/s, 10 s steps (like 18.5 Gbit/s, 104 ms)" in title
    assert "links of 3 Mbit/s and steps of 10 s (like 18.5 Gbit/s, 104 ms)" in first
    assert "links of 6 Mbit/s and steps of 5 s" in second


def test_frameworks_and_their_settings_are_lines(tree: Tree, make_run: MakeRun) -> None:
    for nodes in (1, 2):
        emulate(make_run, nodes=nodes)
        for stage in (0, 1):
            fields = {"strategy": "deepspeed", "deepspeed_zero_stage": stage}
            emulate(make_run, nodes=nodes, **fields)
    lines = {"PyTorch-DDP", "DeepSpeed, ZeRO stage 0", "DeepSpeed, ZeRO stage 1"}
    assert set(table_of(tree)["line"]) == lines
    (ax,) = QUESTIONS["efficiency_emulated"].draw(table_of(tree)).axes
    assert {text.get_text() for text in ax.texts} == lines, "names at the ends of curves"
    marks = {line.get_marker() for line in ax.lines} - {"None", "x", "_"}
    assert len(marks) == len(lines)


@pytest.mark.parametrize("field", FIELDS)
def test_another_field_is_another_line(tree: Tree, make_run: MakeRun, field: str) -> None:
    one, other = changed(field, nodes=2)
    for spec, efficiency in ((one, 0.9), (other, 0.7)):
        own = {field: getattr(spec, field)}
        emulate(make_run, efficiency, nodes=2, **own)
        alone = own if field != "emu_uplink_mbit" else {"repeat": int(spec is other)}
        emulate(make_run, nodes=1, **alone)
    table = table_of(tree)
    several = table[table["world_size"] == 2]
    assert several["n"].tolist() == [1, 1]
    assert several["line"].nunique() == 2


def test_delayed_ranks_are_measured_by_one_without_delays(tree: Tree, make_run: MakeRun) -> None:
    emulate(make_run)
    emulate(make_run, 0.9, nodes=2)
    emulate(make_run, 0.7, nodes=2, emu_straggler=1.2)
    emulate(make_run, 0.8, nodes=2, emu_jitter=0.1, epochs=3)
    emulate(make_run, 0.5, nodes=2, emu_straggler=1.2, emu_step_ms=7)  # nobody to compare with
    emulate(make_run, 0.6, nodes=2, emu_straggler=1.2, strategy="horovod")
    table = table_of(tree)
    assert table["world_size"].tolist().count(1) == 1
    known = table[table["value"].notna()].set_index("line")["value"]
    assert known[known.index.str.contains("20 % slower")].tolist() == pytest.approx([0.7])
    assert known[known.index.str.contains("10 % jitter")].tolist() == pytest.approx([0.8])
    assert len(known) == 4
    said = words(QUESTIONS["efficiency_emulated"].draw(table))
    assert said.count("No run of one rank:") == 2


def test_what_is_unfaithful_is_counted_and_not_drawn(tree: Tree, make_run: MakeRun) -> None:
    emulate(make_run)
    emulate(make_run, 0.9, nodes=2)
    emulate(make_run, 0.8, nodes=2, emu_link_mbit=25)
    for nodes in (1, 2):
        emulate(make_run, 0.1, nodes=nodes, repeat=1, other_cpu_share=0.5)
    runs = runs_table(tree)
    assert runs["unfaithful"].dropna().str.startswith("the cores were busy").tolist() == [True] * 2
    table = points(runs)
    assert table["value"].tolist() == pytest.approx([1, 0.9, 1, 0.8])
    assert table["unfaithful"].tolist() == [1, 1, 1, 0]
    assert "Rejected: 2 runs." in words(QUESTIONS["efficiency_emulated"].draw(table))


@pytest.fixture
def both(make_run: MakeRun) -> None:
    """Measured and emulated runs in one study, alike but for that."""
    for nodes in (1, 2):
        emulate(make_run, nodes=nodes)
        make_run(20.0 / nodes, study="emulation", strategy="ddp", nodes=nodes)


@pytest.mark.usefixtures("both")
@pytest.mark.slow
def test_emulated_runs_are_in_no_other_figure(tree: Tree) -> None:
    runs = runs_table(tree)
    assert not ended_runs(runs)["emulated"].any()
    assert configurations(tree)["n"].tolist() == [1, 1]
    for name in set(QUESTIONS) - {"efficiency_emulated"}:
        assert "paced_resnet50" not in set(points_of(name, runs).get("model", [])), name


@pytest.mark.usefixtures("both")
def test_measured_and_emulated_stand_apart(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="measured and emulated runs are never shown together"):
        with_settings(runs_table(tree))
    draw_only(monkeypatch, "comparison", "efficiency_emulated")
    done = redraw(tree, figures=tree.figures, studies=["emulation"])
    assert "efficiency_emulated" in {path.stem for path in done.files}
    assert "paced" not in (tree.figures / "emulation" / "comparison.csv").read_text()
    page = (tree.figures / "emulation" / "README.md").read_text()
    assert "Runs not drawn: 2 emulated" in page


def test_the_figure_names_the_emulation_and_single_runs(tree: Tree, make_run: MakeRun) -> None:
    for repeat in (0, 1):
        emulate(make_run, repeat=repeat)
        emulate(make_run, 0.9, nodes=2, repeat=repeat)
    said = words(QUESTIONS["efficiency_emulated"].draw(table_of(tree)))
    assert "Open: one run" not in said
    assert "EMULATED: PyTorch-DDP reaches efficiency 0.900" in said
    assert "Nodes are network namespaces of one machine" in said
    assert "emulated nodes G" in said
    emulate(make_run, 0.8, nodes=4)
    figure = QUESTIONS["efficiency_emulated"].draw(table_of(tree))
    assert "Open: one run." in words(figure)
    marks = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [float(line.get_ydata()[0]) for line in marks] == pytest.approx([0.8])
