"""The frame of a figure: its question, and what its panels are called."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddl_core.analysis.plot.canvas import frame, short_titles, styled


@pytest.mark.parametrize(
    ("names", "titles", "shared"),
    [
        (["laptop: 32 px, fp32"], ["laptop: 32 px, fp32"], ""),
        (
            ["native · laptop: 32 px, fp32", "DALI · laptop: 32 px, fp32"],
            ["native", "DALI"],
            "laptop, 32 px, fp32",
        ),
        (
            ["one: 32 px, fp32, ResNet50", "two: 64 px, fp32, ResNet18"],
            ["one: 32 px, ResNet50", "two: 64 px, ResNet18"],
            "fp32",
        ),
        (
            ["knobs: fp32, ResNet50", "knobs: fp32, bucket 1 MiB, ResNet50"],
            ["knobs: fp32, ResNet50", "bucket 1 MiB"],
            "knobs, fp32, ResNet50",
        ),
        (
            ["native · one: fp32", "DALI · one: fp32", "the paper (JUWELS Booster)"],
            ["native", "DALI", "the paper (JUWELS Booster)"],
            "one, fp32",
        ),
        (["bus bandwidth", "time of one"], ["bus bandwidth", "time of one"], ""),
    ],
)
def test_titles_name_what_differs_between_panels(
    names: list[str], titles: list[str], shared: str
) -> None:
    assert short_titles(names) == (titles, shared)


def test_what_panels_share_stands_below_them() -> None:
    figure, axes = styled(frame)("Why?", ["a: b, c", "a: b, d"], [1.0, 1.0], [], ["Told."])
    assert [ax.get_title(loc="left") for ax in axes] == ["(a) c", "(b) d"]
    assert figure.texts[-1].get_text() == "Told. All panels measured here: a, b."


def test_a_long_question_is_broken_into_lines_above_all_else() -> None:
    question = "Does it cost more than it brings, and what does that depend on? " * 4
    figure, (ax,) = styled(frame)(question, ["one"], [1.0], [], ["Told."])
    FigureCanvasAgg(figure).draw()
    title = figure.texts[0]
    box = title.get_window_extent()
    assert title.get_text().count("\n") >= 2
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert ax.title.get_window_extent().y1 < box.y0
    assert box.y1 <= figure.bbox.y1
