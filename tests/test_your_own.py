"""A stranger's network and data in a folder outside the project, as two pages of docs/ say."""

import hashlib
from pathlib import Path

import pandas as pd
import pytest

from ddl_tools.records.paths import Tree
from ddl_tools.records.run import read_epochs, read_record
from tests import pages
from tests.pictures import CLASSES, write_pictures

NETWORK, DATA = "how-to/use-your-model.md", "how-to/use-your-data.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.notebook,
    pytest.mark.extended,
]


def follow(page: str, folder: Path) -> None:
    """Write the files of a page and execute its commands."""
    pages.write(list(pages.files(page)), page, folder)
    run = {"ddl": pages.ddl, "python": pages.python}
    for program, *words in pages.calls(page):
        run[program](folder, folder, *words)


def images(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*.png")}


def test_a_network_runs_to_a_figure(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 64, 16)
    assert f"classes: {CLASSES}\n" in pages.files(NETWORK)["networks.yaml"]
    follow(NETWORK, tmp_path)
    records = [read_record(one) for one in Tree(tmp_path / "results").run_folders("networks")]
    told = {one.spec.model: (one.system or {})["network"] for one in records}
    digest = hashlib.sha256((tmp_path / "ours.py").read_bytes()).hexdigest()
    assert told.keys() == {"ours:small", "timm/test_vit", "torchvision/shufflenet_v2_x0_5"}
    assert told["ours:small"]["source_sha256"] == digest
    (drawn,) = (tmp_path / "results" / "figures").rglob("comparison.csv")
    assert set(pd.read_csv(drawn)["model"]) == told.keys()
    text = drawn.with_suffix(".svg").read_text()
    for name in ("ours:small", "test_vit (timm)", "shufflenet_v2_x0_5 (torchvision)"):
        assert name in text


def test_data_run_to_a_figure_and_are_learnt(tmp_path: Path) -> None:
    follow(DATA, tmp_path)
    (folder,) = Tree(tmp_path / "results").run_folders("shapes")
    assert read_record(folder).status == "completed"
    rows = [row for row in read_epochs(folder) if row.phase == "eval"]
    assert [row.samples for row in rows] == [64] * 4
    assert max(row.top1 or 0 for row in rows) > 0.7
    assert list((tmp_path / "results" / "figures").rglob("comparison.svg"))
    written, of_saved = (images(tmp_path / name) for name in ("images", "images_of_saved"))
    assert len(of_saved) == 320
    assert of_saved == written
