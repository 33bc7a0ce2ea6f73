"""A stranger's network, loader, data and script outside the project, as pages of docs/ say."""

import hashlib
import os
import re
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.records.run import read_epochs, read_record
from ddl_tools.records.stored import run_dirs
from tests import pages
from tests.pictures import CLASSES, write_pictures

NETWORK, DATA = "how-to/use-your-model.md", "how-to/use-your-data.md"
ALL = "how-to/measure-your-own.md"
SCRIPT = "how-to/measure-your-script.md"
EXECUTE = """
from pathlib import Path
from ddl_tools.launch.notebook import execute
notebook = Path("mine.ipynb").resolve()
execute(notebook, notebook, {})
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.notebook,
    pytest.mark.extended,
]


def follow(page: str, folder: Path) -> None:
    pages.write(list(pages.files(page)), page, folder)
    run = {"ddl": pages.ddl, "python": pages.python}
    for program, *words in pages.calls(page):
        run[program](folder, folder, *words)


def images(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*.png")}


def contents(folder: Path) -> list[bytes]:
    return [one.read_bytes() for one in folder.rglob("*.[jJ]*")]


def test_a_network_runs_to_a_page(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 64, 16)
    assert f"classes: {CLASSES}\n" in pages.files(NETWORK)["networks.yaml"]
    follow(NETWORK, tmp_path)
    records = [read_record(one) for one in run_dirs("networks", Tree(tmp_path / "results"))]
    told = {one.spec.model: (one.system or {})["network"] for one in records}
    digest = hashlib.sha256((tmp_path / "ours.py").read_bytes()).hexdigest()
    assert told.keys() == {"ours:small", "timm/test_vit", "torchvision/shufflenet_v2_x0_5"}
    assert told["ours:small"]["source_sha256"] == digest
    (drawn,) = (tmp_path / "results" / "figures").rglob("comparison.csv")
    assert set(pd.read_csv(drawn)["model"]) == told.keys()
    text = " ".join(pd.read_csv(drawn)["label"])
    assert drawn.with_name("README.md").is_file()
    for name in ("ours:small", "test_vit (timm)", "shufflenet_v2_x0_5 (torchvision)"):
        assert name in text


def test_data_run_to_a_page_and_are_learnt(tmp_path: Path) -> None:
    photographs = write_pictures(tmp_path / "raw", 80, 0) / "train"
    photographs.rename(tmp_path / "photographs")
    follow(DATA, tmp_path)
    (folder,) = run_dirs("shapes", Tree(tmp_path / "results"))
    assert read_record(folder).status == "completed"
    rows = [row for row in read_epochs(folder) if row.phase == "eval"]
    assert [row.samples for row in rows] == [64] * 4
    assert max(row.top1 or 0 for row in rows) > 0.7
    assert list((tmp_path / "results" / "figures").rglob("comparison.csv"))
    written, of_saved = (images(tmp_path / name) for name in ("images", "images_of_saved"))
    assert len(of_saved) == 320
    assert of_saved == written
    split = [contents(tmp_path / "images_of_folder" / part) for part in ("train", "val")]
    assert sorted(split[0] + split[1]) == sorted(contents(tmp_path / "photographs"))
    assert 8 <= len(split[1]) <= 24  # of 80


@pytest.mark.alone
def test_a_network_and_a_loader_run_to_intervals_and_a_notebook(tmp_path: Path) -> None:
    """As the page says, with three starts in place of four, and images that are made faster."""
    installed = pages.install(ALL, tmp_path / "package", tmp_path / "installed")
    study = pages.files(ALL)["own.yaml"]
    # More rounds: on a busy machine some of each start are disturbed, and left out.
    for of_page, here in (("\nrepeats: 4", "\nrepeats: 3"), ("  epochs: 4", "  epochs: 10")):
        assert f"{of_page}\n" in study
        study = study.replace(of_page, here)
    (tmp_path / "own.yaml").write_text(study)
    write_pictures(tmp_path / "images", 640, 16)
    commands = [words for words in pages.commands(ALL) if words[:2] != ["data", "sample"]]
    said = "".join(pages.ddl(installed, tmp_path, *words) for words in commands)
    assert "15 completed" in said
    assert re.search(r"our_loader.*: \d\.\d\d \[", said)
    figures = tmp_path / "results" / "figures" / "own"
    assert set(pd.read_csv(figures / "loader_bound.csv")["loader"]) == {"native", "our_loader"}
    *_, cell = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / ALL).read_text(), re.S)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell)], metadata={"kernelspec": kernel}
    )
    nbformat.write(notebook, tmp_path / "mine.ipynb")
    pages.python(installed, tmp_path, "-c", EXECUTE)
    (shown,) = nbformat.read(tmp_path / "mine.ipynb", as_version=4).cells[-1:]
    kinds = {kind for output in shown.outputs for kind in output.get("data", {})}
    assert {"text/markdown", "image/png", "text/html"} <= kinds


def test_a_script_runs_to_a_page(tmp_path: Path) -> None:
    """As the page says, with one start in place of four, and fewer windows."""
    study = pages.files(SCRIPT)["mine.yaml"]
    for of_page, here in (("repeats: 4", "repeats: 1"), ("epochs: 4", "epochs: 2")):
        assert of_page in study
        study = study.replace(of_page, here)
    (tmp_path / "mine.yaml").write_text(study)
    pages.write(["train.py"], SCRIPT, tmp_path)
    # As in an environment that is activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    commands = [words for words in pages.commands(SCRIPT) if words[0] != "recommend"]
    said = [pages.ddl(tmp_path, tmp_path, *words, PATH=path) for words in commands]
    assert "python train.py --batch 64" in said[0]
    assert "2 completed" in said[1]
    assert re.search(r"  batch 64: \d\.\d\d", said[2])
    (drawn,) = (tmp_path / "results" / "figures").rglob("comparison.csv")
    assert {*pd.read_csv(drawn)["label"]} == {"batch 32", "batch 64"}
