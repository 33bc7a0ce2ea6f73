"""A newcomer's walk in a real JupyterLab, in a real browser, under the address of a portal."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from PIL import Image

from ddl_tools.launch.study import find_study
from ddl_tools.processes import import_path
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import NOTEBOOKS, Tree
from tests.analysis.hostile import RAN, SCRIPT, make_world
from tests.launch.running import free_port, study_file, wait_for

pytestmark = [
    pytest.mark.browser,
    pytest.mark.notebook,
    pytest.mark.multiprocess,
    pytest.mark.extended,
]

PREFIX = "/user/someone/lab-prefix/"  # as a JupyterHub has one
START_S = 120
RUN_S = 600


@dataclass(frozen=True)
class Lab:
    root: Path
    url: str
    token: str

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}?token={self.token}", timeout=60) as reply:
            return reply.read()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """JupyterLab in a folder with the notebooks, a small study, and room for results."""
    root = tmp_path / "checkout"
    shutil.copytree(NOTEBOOKS, root / "notebooks")
    monkeypatch.setenv("DDL_RESULTS", str(root / "results"))
    study = study_file(root, repeats=3, epochs=2, loader_workers=[0, 1])
    choose(root / "notebooks" / "02_study.ipynb", '"laptop"', repr(str(study)))
    port = free_port()
    token = secrets.token_hex(16)
    settings = {
        "ServerApp.base_url": PREFIX,
        "ServerApp.root_dir": root,
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": token,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "KernelManager.transport_encryption": "auto",
    }
    home = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *(f"--{k}={v}" for k, v in settings.items())],
            env={**os.environ, **home, "PYTHONPATH": import_path()},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    found = Lab(root, f"http://127.0.0.1:{port}{PREFIX}", token)
    try:
        wait_for(lambda: answers(found, server), f"JupyterLab, see {tmp_path}/lab.log", START_S)
        yield found
    finally:
        server.terminate()  # ends its kernels too
        try:
            server.wait(30)
        finally:
            server.kill()


def choose(path: Path, default: str, value: str) -> None:
    """Do what a newcomer does: name something else in the cell of parameters."""
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    cell.source = cell.source.replace(default, value)
    assert value in cell.source
    nbformat.write(notebook, path)


def answers(lab: Lab, server: "subprocess.Popen[bytes]") -> bool:
    assert server.poll() is None, "JupyterLab ended at once"
    try:
        return bool(lab.get("api"))
    except OSError:
        return False


# Scrolls to the output of a cell: JupyterLab writes no text that is out of view.
OUTPUT = """
const output = document.querySelectorAll('.jp-Notebook .jp-Cell')[arguments[0]]
  .querySelector('.jp-Cell-outputArea')
output.scrollIntoView({block: 'end'})
return output.innerText
"""
SHOWN = "return document.body.innerText"
FIGURE = """
return [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output img')]
  .filter(one => one.complete && one.naturalWidth > 300).length
"""


def click(browser: Any, menu: str, command: str) -> None:
    for bar in browser.find_elements("css selector", ".lm-MenuBar-item"):
        if bar.text == menu:
            bar.click()
    entry = f'.lm-Menu-item[data-command="{command}"]'
    wait_for(lambda: browser.find_elements("css selector", entry), f"the menu {menu}", 30)
    browser.find_element("css selector", entry).click()


def cells_of(lab: Lab, path: str) -> list[Any]:
    content = json.loads(lab.get(f"api/contents/{path}"))["content"]
    return list(nbformat.from_dict(content).cells)


def outputs_of(lab: Lab, path: str) -> list[Any]:
    return [output for cell in cells_of(lab, path) for output in cell.get("outputs", [])]


def assert_shows_something(picture: bytes, most_blank: float) -> None:
    pixels = np.asarray(Image.open(BytesIO(picture)).convert("L"))
    blank = np.bincount(pixels.ravel(), minlength=256).max() / pixels.size
    assert blank < most_blank
    assert pixels.std() > 5


@pytest.mark.timeout(START_S + RUN_S + 120)
def test_a_newcomer_opens_02_study_runs_all_and_sees_the_figure(lab, browser, tmp_path) -> None:
    notebook = "notebooks/02_study.ipynb"
    run_all(lab, browser, notebook, "A study: which runs")
    cells = enumerate(cells_of(lab, notebook))
    (running,) = (number for number, cell in cells if "run_study(" in cell.source)
    seen: set[str] = set()

    def figure_is_shown() -> bool:
        seen.add(browser.execute_script(OUTPUT, running))
        return browser.execute_script(FIGURE) >= 1 and not is_busy(browser)

    wait_for(figure_is_shown, "the figure", RUN_S)
    assert any(re.search(r"run \d/6 .*\|##", text) for text in seen), "no progress was shown"
    wait_for(lambda: "6 runs: " in browser.execute_script(OUTPUT, running), "the summary", 30)
    assert "6 runs: 6 completed" in browser.execute_script(OUTPUT, running)

    (image, *_) = browser.find_elements("css selector", ".jp-OutputArea-output img")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", image)
    wait_for(lambda: image.is_displayed() and image.rect["width"] > 300, "the figure in view")
    browser.save_screenshot(str(tmp_path / "study.png"))
    assert_shows_something((tmp_path / "study.png").read_bytes(), 0.98)
    image.screenshot(str(tmp_path / "figure.png"))
    assert_shows_something((tmp_path / "figure.png").read_bytes(), 0.98)

    click(browser, "File", "docmanager:save")
    wait_for(lambda: outputs_of(lab, notebook), "the saved notebook")
    saved = outputs_of(lab, notebook)
    assert [output for output in saved if output.output_type == "error"] == []
    assert any("image/png" in output.get("data", {}) for output in saved)
    runs = ledger(find_study(str(lab.root / "small.yaml")), Tree(lab.root / "results"))
    assert [run.state for run in runs] == ["completed"] * 6

    follow_the_last_link(browser, lab)
    browser.save_screenshot(str(tmp_path / "link.png"))


def run_all(lab: Lab, browser: Any, notebook: str, begins: str) -> None:
    """Open a notebook, of which a text is seen at once, and run its cells."""
    # The log-in page takes the token from the address.
    browser.get(f"{lab.url}lab/tree/{notebook}?token={lab.token}&reset")
    wait_for(lambda: begins in browser.execute_script(SHOWN), "the notebook", START_S)
    wait_for(lambda: kernel_is_idle(browser), "an idle kernel", START_S)
    for _ in range(3):  # on a busy machine a click may come before the menu knows the notebook
        click(browser, "Run", "runmenu:run-all")
        with suppress(AssertionError):
            wait_for(lambda: any_prompt(browser, "*123456789"), "a cell to run", 30)
            return
    raise AssertionError(f"{notebook}: no cell ran")


@pytest.mark.timeout(6 * START_S)
def test_texts_of_records_run_in_no_notebook(lab: Lab, browser: Any) -> None:
    """Cells that were run here are trusted: JupyterLab takes nothing out of their HTML."""
    make_world(lab.root, SCRIPT)
    notebook = "notebooks/11_throughput.ipynb"
    choose(lab.root / notebook, '""', '"../results"')
    run_all(lab, browser, notebook, "Which strategy, loader and number of ranks")
    cells = enumerate(cells_of(lab, notebook))
    (showing,) = (number for number, cell in cells if "display(" in cell.source)

    def is_shown() -> bool:
        return "window.ran" in browser.execute_script(OUTPUT, showing) and not is_busy(browser)

    wait_for(is_shown, "the text", START_S)
    assert browser.execute_script(RAN) is None

    control = nbformat.read(lab.root / notebook, as_version=4)
    source = f"from IPython.display import HTML\nHTML({SCRIPT!r})"
    control.cells = [nbformat.v4.new_code_cell(source)]
    nbformat.write(control, lab.root / "control.ipynb")
    run_all(lab, browser, "control.ipynb", "IPython")
    wait_for(lambda: browser.execute_script(RAN) is not None, "the control to run", START_S)


def follow_the_last_link(browser: Any, lab: Lab) -> None:
    """A link to a figure opens it beside the notebook, below the portal's prefix."""
    (*_, link) = browser.find_elements("css selector", ".jp-OutputArea-output a")
    name = link.text.split("/")[-1]
    assert name.endswith(".svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    # Of an <img>, 0 where the server did not have it.
    width = "return document.querySelector('.jp-ImageViewer img')?.naturalWidth ?? 0"
    wait_for(lambda: browser.execute_script(width) > 100, f"{name}, opened by its link")
    assert browser.current_url.startswith(lab.url)


def is_busy(browser: Any) -> bool:
    return any_prompt(browser, "*")


def any_prompt(browser: Any, characters: str) -> bool:
    """Return whether the prompt of a cell has one of some characters."""
    prompts = "return [...document.querySelectorAll('.jp-InputPrompt')].map(p => p.innerText)"
    return any({*prompt} & {*characters} for prompt in browser.execute_script(prompts))


def kernel_is_idle(browser: Any) -> bool:
    status = "return document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status"
    return browser.execute_script(status) == "idle"
