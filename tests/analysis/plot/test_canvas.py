"""The frame of a figure: its title, and what its panels are called."""

from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure

from ddl_tools.analysis.plot import style
from ddl_tools.analysis.plot.canvas import (
    THEME,
    add_caption,
    caption_of,
    frame,
    handles,
    styled,
    title_of,
)
from tests.analysis.drawn import misplaced


@styled
def framed(*args: Any, **kwargs: Any) -> Figure:
    return frame(*args, **kwargs)[0]


@pytest.mark.parametrize(
    ("names", "titles", "shared"),
    [
        (["laptop: 32 px, fp32"], ["laptop: 32 px, fp32"], ""),
        (
            ["native · laptop: 32 px, fp32", "DALI · laptop: 32 px, fp32"],
            ["(a) native", "(b) DALI"],
            "laptop, 32 px, fp32. ",
        ),
        (
            ["one: 32 px, fp32, ResNet50", "two: 64 px, fp32, ResNet18"],
            ["(a) one, 32 px, ResNet50", "(b) two, 64 px, ResNet18"],
            "fp32. ",
        ),
        (
            ["knobs: fp32, ResNet50", "knobs: fp32, bucket 1 MiB, ResNet50"],
            ["(a) knobs: fp32, ResNet50", "(b) bucket 1 MiB"],
            "knobs, fp32, ResNet50. ",
        ),
        (
            ["native · one: fp32", "DALI · one: fp32", "the paper (JUWELS Booster)"],
            ["(a) native", "(b) DALI", "(c) the paper (JUWELS Booster)"],
            "one, fp32. ",
        ),
        (["bus bandwidth", "time of one"], ["(a) bus bandwidth", "(b) time of one"], ""),
    ],
)
def test_titles_name_what_differs_between_panels_and_the_caption_what_they_share(
    names: list[str], titles: list[str], shared: str
) -> None:
    figure = framed("Why?", names, [1.0] * len(names), [], ["Told."])
    assert [ax.get_title(loc="left") for ax in figure.axes] == titles
    assert caption_of(figure) == shared + "Told."
    add_caption(figure, ["More."])
    assert caption_of(figure) == shared + "Told. More."


def test_the_line_is_drawn_and_ends_the_caption() -> None:
    figure = framed("Why?", ["one"], [1.0], [], ["Told."], line="AMD EPYC; n = 4 starts")
    assert figure.get_supxlabel() == "AMD EPYC; n = 4 starts"
    assert caption_of(figure) == "Told. AMD EPYC; n = 4 starts."


BROKEN = "$\\frac{$ and $x_{$"


def test_no_text_of_a_figure_is_read_as_mathematics() -> None:
    legend = handles({BROKEN: {"marker": "o"}})
    figure = framed(BROKEN, [f"a: {BROKEN}", "b: x"], [1.0, 1.0], legend, ["Told."], line=BROKEN)
    with matplotlib.rc_context(THEME):
        figure.axes[0].text(0, 0, BROKEN)
        figure.axes[0].set_xlabel(BROKEN)
        figure.draw_without_rendering()
    assert title_of(figure) == BROKEN


def test_a_long_title_is_broken_into_lines_above_all_else() -> None:
    finding = "Is it $1 or $2? " * 18
    legend = handles({name: {"marker": "o"} for name in ("one", "two")})
    figure = framed(finding, ["one"], [1.0], legend, ["Told. " * 60])
    assert not misplaced(figure)
    (ax,) = figure.axes
    title = figure.legends[0].get_title()
    assert title.get_text().count("\n") >= 2
    entries = [text.get_window_extent() for text in figure.legends[0].get_texts()]
    heights = [
        ax.get_tightbbox().y1,
        min(box.y0 for box in entries),
        max(box.y1 for box in entries),
        title.get_window_extent().y0,
    ]
    assert heights == sorted(heights)
    assert title_of(figure) == finding.strip()


def test_a_legend_has_room_for_dashes_beside_their_mark() -> None:
    widths = []
    for line in ("solid", (0, (5, 2))):
        legend = handles({"one": {"marker": "o", "linestyle": line}})
        figure = framed("Why?", ["one"], [1.0], legend, [])
        figure.draw_without_rendering()
        (mark,) = figure.legends[0].legend_handles
        widths.append(mark.get_window_extent().width)
    assert widths[1] > 1.5 * widths[0]


@pytest.mark.parametrize("title", ["short", "a long title, which says much, " * 20])
def test_panels_are_as_high_as_asked_for_whatever_stands_around_them(title: str) -> None:
    legend = handles({f"{title} {number}": {"marker": "o"} for number in range(4)})
    names = [f"{number}: {title}" for number in range(4)]
    figure = framed(title, names, [1.0, 2.0], legend, [], line=title)
    heights = [ax.get_position().height * figure.get_figheight() for ax in figure.axes]
    assert heights == pytest.approx([1, 1, 2, 2], abs=0.02)
    assert not misplaced(figure)


def test_a_legend_has_as_few_rows_as_its_labels_allow() -> None:
    rows = []
    for label in ("short", "longer than a third of the width", "longer than the width " * 12):
        legend = handles({f"{label} {number}": {"marker": "o"} for number in range(4)})
        figure = framed("Why?", ["one"], [1.0], legend, [])
        assert not misplaced(figure)
        places = {round(text.get_window_extent().y0) for text in figure.legends[0].get_texts()}
        rows.append(len(places))
    assert rows == [1, 2, 4]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("two words", ["two words"]),
        ("eight ranks, native", ["eight ranks,", "native"]),
        ("eight ranks of a node, on a CPU", ["eight ranks of", "a node,", "on a CPU"]),
        ("ratio 0.9 [0.1, 2]", ["ratio 0.9", "[0.1, 2]"]),
        ("as_long_as_a_name_can_be", ["as_long_as_a_", "name_can_be"]),
        ("", [""]),
    ],
)
def test_a_text_is_broken_after_commas_else_between_words(text: str, lines: list[str]) -> None:
    with matplotlib.rc_context(THEME):
        room = style.size_of("eight ranks, na", size=7)[0]
        broken = style.wrapped(text, room, size=7)
        assert broken.split("\n") == lines
        assert all(style.size_of(line, size=7)[0] <= room for line in lines)
