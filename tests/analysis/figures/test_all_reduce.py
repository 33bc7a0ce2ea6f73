"""The all-reduce figure: the formulas, one line per probe, the same bytes each time."""

from pathlib import Path

import pytest

from ddl_tools.analysis.figures.all_reduce import MOST_LINES, draw, points
from ddl_tools.analysis.plot.canvas import caption_of
from ddl_tools.analysis.redraw import redraw_probes
from ddl_tools.records.paths import Tree
from ddl_tools.records.probe import write_probe
from tests.analysis.drawn import LONG, misplaced
from tests.doctor.made import answer, record, size


def plant(root: Path, number: int) -> None:
    """Write a probe of two ranks."""
    name = f"here-1x2-2026010{number // 10}T00000{number % 10}"
    sizes = [size(1024, 1e-4 * (number + 1)), size(2**28, 0.5)]
    ranks = [answer(0, all_reduce=sizes), answer(1)]
    probe = record(*ranks, name=name, created_utc=f"2026-01-0{1 + number // 10}")
    write_probe(Tree(root).probes / name, probe)


def test_bandwidths_follow_nccl_tests(tmp_path: Path) -> None:
    """Four ranks, 2^28 bytes in 0.5 s: algbw 0.54 GB/s, busbw 1.5 times that."""
    ranks = [answer(rank, all_reduce=[size(2**28, 0.5)] if rank == 0 else []) for rank in range(4)]
    write_probe(Tree(tmp_path).probes / "x", record(*ranks))
    (row,) = points(Tree(tmp_path)).to_dict("records")
    assert row["algorithm_bytes_per_s"] == 2**29
    assert row["bus_bytes_per_s"] == 2**29 * 1.5
    assert row["ranks"] == 4
    assert row["interface"] == "eth0"


def test_a_line_per_probe_with_the_plotted_values(tmp_path: Path) -> None:
    for number in range(3):
        plant(tmp_path, number)
    table = points(Tree(tmp_path))
    bandwidth, time = draw(table).axes
    assert len(bandwidth.lines) == len(time.lines) == 3
    assert list(time.lines[1].get_ydata()) == pytest.approx([0.2, 500])
    assert list(bandwidth.lines[1].get_ydata()) == pytest.approx([1024 / 2e-4 / 1e9, 2**29 / 1e9])


def test_the_newest_probes_are_drawn_and_the_others_counted(tmp_path: Path) -> None:
    for number in range(MOST_LINES + 2):
        plant(tmp_path, number)
    figure = draw(points(Tree(tmp_path)))
    assert len(figure.axes[0].lines) == MOST_LINES
    assert "Older probes not drawn (CSV): 2." in caption_of(figure)


def test_long_names_stay_on_the_page(tmp_path: Path) -> None:
    for number in range(MOST_LINES):
        plant(tmp_path, number)
    table = points(Tree(tmp_path))
    names = LONG + table["probe"]
    assert not misplaced(draw(table.assign(probe=names, hardware=LONG, interface=LONG)))


def test_files_are_the_same_each_time_and_absent_without_probes(tmp_path: Path) -> None:
    assert redraw_probes(Tree(tmp_path), figures=tmp_path / "figures") == []
    plant(tmp_path, 0)
    write_probe(Tree(tmp_path).probes / "failed", record(name="failed", status="planned"))
    first = {path: path.read_bytes() for path in _drawn(tmp_path)}
    assert {path.suffix for path in first} == {".svg", ".pdf", ".png", ".csv"}
    assert {path: path.read_bytes() for path in _drawn(tmp_path)} == first


def _drawn(root: Path) -> list[Path]:
    return redraw_probes(Tree(root), figures=root / "figures")
