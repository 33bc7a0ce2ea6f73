"""One run by itself, whatever it did."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddl_tools.analysis.run_report import run_figure, run_table
from tests.analysis.conftest import MakeRun, epoch_row

LOADED = [epoch_row(epoch, loss=None, top1=None, top5=None, lr=None) for epoch in range(3)]


def test_run_that_only_loaded_has_a_throughput_and_no_loss(make_run: MakeRun) -> None:
    directory = make_run(work="load", rows=LOADED)
    figure = run_figure(directory)
    FigureCanvasAgg(figure).draw()
    loss, speed = figure.axes
    assert not loss.lines
    assert [text.get_text() for text in loss.texts] == ["nothing was trained"]
    assert len(speed.lines) == 2
    assert len(run_table(directory)) == 3


@pytest.mark.parametrize("rows", [[], [epoch_row(0)]], ids=["no epoch", "one"])
def test_run_that_trained_does_not_say_so(make_run: MakeRun, rows: list) -> None:
    loss, _ = run_figure(make_run(rows=rows)).axes
    assert not loss.texts
