"""The page for an application: its numbers in three forms, and what it says first."""

import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from ddl_core.errors import DataError, RecordError
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.csv_file import read_csv
from ddl_tools.analysis.document import (
    Document,
    Heading,
    Items,
    Picture,
    Table,
    Text,
    as_latex,
    as_markdown,
)
from ddl_tools.analysis.metrics import J_PER_KWH
from ddl_tools.analysis.proposal import Proposal, Request, proposal, write
from ddl_tools.analysis.tables import runs_table
from ddl_tools.estimate import Estimate, three_digits
from ddl_tools.records.paths import FIGURES, Tree, committed
from tests.analysis.conftest import CODE, GPU, MACHINE, MakeRun, epoch_row
from tests.analysis.emulated import emulate

SPREAD = (0.98, 1.0, 1.02)
EPOCHS, IMAGES = 2, 5120


def scaled(make_run: MakeRun, nodes: int, wall_s: float, batch: int = 16, **fields: Any) -> None:
    """Write starts of DDP on nodes of 4 GPUs; on one node an epoch would take `wall_s`."""
    known = {"system": GPU, "loader": "native", "energy_j": 640.0} | fields
    energy = known.pop("energy_j")
    for repeat, factor in enumerate(known.pop("spread", SPREAD)):
        made = {"wall_s": factor * wall_s / nodes, "samples": IMAGES, "energy_j": energy}
        make_run(
            rows=[epoch_row(epoch, **made) for epoch in range(EPOCHS)],
            **{"study": "mine", "strategy": "ddp", "nodes": nodes, "gpus_per_node": 4},
            **{
                "train_images": IMAGES,
                "local_batch_size": batch,
                "repeat": repeat,
                "epochs": EPOCHS,
            },
            **{"eval_every": 0, "eval_images": None} | known,
        )


def three_sizes(make_run: MakeRun, **fields: Any) -> None:
    for nodes, wall_s in ((1, 10.0), (2, 10.5), (4, 11.5)):
        scaled(make_run, nodes, wall_s, **fields)


def tables(found: Proposal) -> list[Table]:
    return [one for one in found.page.blocks if isinstance(one, Table)]


def column(table: Table, name: str) -> list[str]:
    place = [*table.head].index(name)
    return [row[place] for row in table.rows]


def words_of_pdf(content: bytes) -> list[str]:
    """Return the texts that a PDF of fpdf2 draws: glyphs of embedded fonts."""
    streams = []
    for found in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", content, re.S):
        try:
            streams.append(zlib.decompress(found[1]))
        except zlib.error:
            streams.append(found[1])
    maps = [
        {int(a, 16): chr(int(b, 16)) for a, b in re.findall(rb"<(\w{4})> <(\w{4})>\n", one)}
        for one in streams
        if b"beginbfchar" in one
    ]
    texts, font = [], 0
    for page in (one for one in streams if b" Tj" in one):
        for name, text in re.findall(rb"/F(\d+) [\d.]+ Tf|\(((?:\\.|[^\\()])*)\) Tj", page, re.S):
            if name:
                font = int(name) - 1
                continue
            plain = re.sub(rb"\\(.)", lambda one: {b"n": b"\n", b"r": b"\r"}.get(one[1], one[1]),
                           text, flags=re.S)  # fmt: skip
            codes = [int.from_bytes(plain[i : i + 2]) for i in range(0, len(plain), 2)]
            texts.append("".join(maps[font][code] for code in codes))
    return texts


def test_numbers_of_the_emulated_study_are_those_of_its_figure(tmp_path: Path) -> None:
    found = proposal(committed(), "emulated_cluster", Request())
    (table,) = tables(found)
    csv = read_csv(FIGURES / "emulated_cluster" / "efficiency_emulated.csv")
    rows = csv[csv["line"] == "PyTorch-DDP, bucket 25 MiB"].to_dict("records")
    expected = {
        (three_digits(row["represents_gbit"]), str(row["world_size"])): str(Estimate.of(row))
        for row in rows
    }
    keys = zip(column(table, "link (Gbit/s)"), column(table, "nodes"), strict=True)
    assert dict(zip(keys, column(table, "efficiency"), strict=True)) == expected
    assert len(expected) == 9
    page, latex, pdf, *_, numbers = write(found, tmp_path)
    assert (
        numbers.read_bytes()
        == (FIGURES / "emulated_cluster" / "efficiency_emulated.csv").read_bytes()
    )
    drawn = words_of_pdf(pdf.read_bytes())
    markdown, tex = page.read_text(), latex.read_text().replace("~", " ")
    for row in table.rows:
        assert f"| {' | '.join(row)} |" in markdown
        assert f"{' & '.join(row)} " in tex
        place = drawn.index(row[3]) if row[1] != "1" else 0
        assert not place or drawn[place - 1] == row[2]
    assert markdown.index("EMULATED") < markdown.index("## Scaling")
    assert "node-hours" not in markdown[: markdown.index("## For you")]
    before = pdf.read_bytes()
    write(found, tmp_path)
    assert pdf.read_bytes() == before


def test_rates_and_forecasts_of_a_study_on_nodes(tree: Tree, make_run: MakeRun) -> None:
    three_sizes(make_run)
    found = proposal(tree, "mine", Request(trainings=10, epochs=3, images=1280, nodes=4))
    assert found.first == []
    scaling, costs = tables(found)
    assert column(scaling, "nodes") == ["1", "2", "4", "8", "16"]
    assert column(scaling, "GPUs") == ["4", "8", "16", "32", "64"]
    assert column(scaling, "starts") == ["3", "3", "3", "forecast", "forecast"]
    configurations = configuration_table(runs_table(tree)).sort_values("world_size")
    rows = configurations.to_dict("records")
    assert column(scaling, "images/s")[:3] == [str(Estimate.of(row)) for row in rows]
    efficiencies = [str(Estimate.of(row, "efficiency")) for row in rows]
    assert column(scaling, "efficiency")[:3] == efficiencies
    assert all("[" in text for text in efficiencies[1:])
    forecast = [one for one in found.curves[0].sizes if one.forecast]
    assert all(one.rate.low < one.rate.value < one.rate.high for one in forecast)
    assert forecast[1].efficiency.value < forecast[0].efficiency.value < rows[2]["efficiency"]
    four = found.curves[0].sizes[2]
    assert four.node_hours.value == pytest.approx(10 * 3 * 1280 / rows[2]["value"] / 3600 * 4)
    assert four.kwh == pytest.approx(640 / IMAGES * 10 * 3 * 1280 / J_PER_KWH)
    assert column(costs, "kWh, all")[2:4] == [three_digits(four.kwh), ""]
    assert column(costs, "rate") == ["measured"] * 3 + ["forecast"] * 2
    with pytest.raises(DataError, match="--nodes 3"):
        proposal(tree, "mine", Request(nodes=3))


def test_strong_scaling_where_runs_share_a_global_batch(tree: Tree, make_run: MakeRun) -> None:
    for batch in (8, 16, 32):
        three_sizes(make_run, batch=batch)
    fixed, strong, _ = tables(proposal(tree, "mine", Request()))
    assert len(set(column(fixed, "batch"))) == 1
    assert "fixed global batch" in strong.caption
    sizes = zip(column(strong, "GPUs"), column(strong, "batch"), strict=True)
    assert {int(ranks) * int(batch) for ranks, batch in sizes} == {128}


def test_a_study_that_shares_a_global_batch_alone(tree: Tree, make_run: MakeRun) -> None:
    for nodes, wall_s, batch in ((1, 10.0, 32), (2, 10.5, 16), (4, 12.0, 8)):
        scaled(make_run, nodes, wall_s, batch=batch)
    found = proposal(tree, "mine", Request())
    strong, _ = tables(found)
    assert strong.caption.startswith("Strong scaling")
    assert column(strong, "batch") == ["32", "16", "8", "4", "2"]
    (picture,) = (one for one in found.page.blocks if isinstance(one, Picture))
    assert "global batch fixed" in picture.caption
    assert "batch per rank" not in picture.caption


@pytest.mark.parametrize(
    ("fields", "sizes", "expected"),
    [
        ({}, 3, []),
        ({}, 1, ["ONE SIZE"]),
        ({"spread": (1.0, 1.1)}, 3, ["NO INTERVALS"]),
        ({"system": MACHINE, "energy_j": None}, 3, ["ON PROCESSORS"]),
        ({"provenance": CODE | {"git_dirty": True}}, 3, ["CHANGED FILES"]),
        ({"loader": "synthetic"}, 3, ["SYNTHETIC IMAGES"]),
    ],
)
def test_doubts_come_first(
    fields: dict[str, Any], sizes: int, expected: list[str], tree: Tree, make_run: MakeRun
) -> None:
    for nodes, wall_s in [(1, 10.0), (2, 10.5), (4, 11.5)][:sizes]:
        scaled(make_run, nodes, wall_s, **fields)
    found = proposal(tree, "mine", Request())
    assert [text.partition(":")[0] for text in found.first] == expected
    for text, block in zip(found.first, found.page.blocks, strict=False):
        assert block == Text(text, strong=True)


def test_a_lost_run_is_counted_and_changes_nothing_else(tree: Tree, make_run: MakeRun) -> None:
    three_sizes(make_run)
    before = proposal(tree, "mine", Request())
    known = {"strategy": "ddp", "nodes": 4, "gpus_per_node": 4, "train_images": IMAGES}
    make_run(rows=[], status="failed", system=None, study="mine", repeat=3, epochs=EPOCHS,
             eval_every=0, eval_images=None, **known)  # fmt: skip
    found = proposal(tree, "mine", Request())
    assert [text.partition(":")[0] for text in found.first] == ["LOST"]
    assert tables(found) == tables(before)


def test_emulated_runs_with_one_start(tree: Tree, make_run: MakeRun) -> None:
    emulate(make_run)
    emulate(make_run, 0.8, 2)
    found = proposal(tree, "emulation", Request())
    assert [text.partition(":")[0] for text in found.first] == ["EMULATED", "NO INTERVALS"]


def test_one_node_has_no_forecast(tree: Tree, make_run: MakeRun) -> None:
    for ranks, wall_s in ((1, 10.0), (2, 11.0)):
        for repeat in range(3):
            make_run(wall_s, study="mine", strategy="ddp", gpus_per_node=ranks, system=GPU,
                     repeat=repeat)  # fmt: skip
    found = proposal(tree, "mine", Request())
    assert found.first[0].startswith("ONE NODE")
    assert not any(one.forecast for curve in found.curves for one in curve.sizes)


def test_nothing_to_show(tree: Tree, make_run: MakeRun) -> None:
    three_sizes(make_run)
    with pytest.raises(RecordError, match="mine"):
        proposal(tree, "other", Request())
    with pytest.raises(DataError, match="no throughput"):
        proposal(tree, "mine", Request(only={"strategy": "horovod"}))


HOSTILE = r"50 % of $x_1$ & a\b {c} #1 ~^ <b> | [0.1, 0.2] \input{/etc/passwd} `code` *bold*"


def test_texts_of_others_are_shown_and_do_nothing() -> None:
    blocks = [Heading(HOSTILE), Text(HOSTILE), Items([(HOSTILE, "https://a.b/c_d?e=1&f#g")])]
    table = Table([HOSTILE], [[HOSTILE]], HOSTILE)
    page = Document(HOSTILE, [*blocks, table, Picture(Path("figure"), HOSTILE)])
    latex = as_latex(page, "mark")
    commands = set(re.findall(r"\\([a-zA-Z]+)", latex))
    assert "input" not in commands
    assert commands <= {
        *("usepackage", "section", "subsection", "textbf", "begin", "end", "item", "texttt"),
        *("allowbreak", "centering", "small", "caption", "toprule", "midrule", "bottomrule"),
        *("includegraphics", "linewidth", "textbackslash", "textasciicircum", "textasciitilde"),
        *("textless", "textgreater", "textbar", "textquotedbl", "ensuremath", "times"),
    }
    bare = re.sub(r"\\[\\&%$#_{}]", "", latex.partition("\n\\section")[2])
    assert not set('$#%~^<>|"') & set(bare.replace("0.1,~0.2", ""))
    assert bare.count("{") == bare.count("}")
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", latex) for word in ("begin", "end"))
    assert sorted(opened) == sorted(closed)
    markdown = as_markdown(page, "mark")
    assert "<b>" not in markdown
    assert "*bold*" not in markdown.replace(r"\*bold\*", "")
