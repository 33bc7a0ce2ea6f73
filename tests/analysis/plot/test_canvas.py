"""The frame of a figure: its title, and what its panels are called."""

import pytest

from ddl_tools.analysis.plot.canvas import add_caption, caption_of, frame, handles, styled, title_of
from tests.analysis.drawn import leaves_the_page


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
    figure, axes = styled(frame)("Why?", names, [1.0] * len(names), [], ["Told."])
    assert [ax.get_title(loc="left") for ax in axes] == titles
    assert caption_of(figure) == shared + "Told."
    add_caption(figure, ["More."])
    assert caption_of(figure) == shared + "Told. More."


def test_the_line_is_drawn_and_ends_the_caption() -> None:
    figure, _ = styled(frame)("Why?", ["one"], [1.0], [], ["Told."], line="AMD EPYC; n = 4 starts")
    assert figure.get_supxlabel() == "AMD EPYC; n = 4 starts"
    assert caption_of(figure) == "Told. AMD EPYC; n = 4 starts."


def test_a_long_title_is_broken_into_lines_above_all_else() -> None:
    finding = "Is it $1 or $2? " * 12
    legend = handles({name: {"marker": "o"} for name in ("one", "two")})
    figure, (ax,) = styled(frame)(finding, ["one"], [1.0], legend, ["Told. " * 60])
    assert not leaves_the_page(figure)
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
        figure, _ = styled(frame)("Why?", ["one"], [1.0], legend, [])
        figure.draw_without_rendering()
        (mark,) = figure.legends[0].legend_handles
        widths.append(mark.get_window_extent().width)
    assert widths[1] > 1.5 * widths[0]
