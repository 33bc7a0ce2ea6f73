"""The site of `make docs`: whole, found by a search, readable on a phone, without a network."""

import os
import re
import runpy
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from ddl_tools.records.paths import NOTEBOOKS, PROJECT

CELLS = "[...document.querySelectorAll('article td')].map(one => one.getBoundingClientRect().right)"
CUT_CODE = (
    "[...document.querySelectorAll('article .highlight pre')]"
    ".filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
)
FIGURES = "[...document.querySelectorAll('article img')].map(one => one.width)"
MIN_FIGURE = 600  # pixels in which the letters of a figure can be read
SHOWN = NOTEBOOKS / "15_schedules.ipynb"
LINK = re.compile(r'(?:href|src)="(?!\w+:)([^"#?]+)(?:#([^"]*))?')
IN_SIDEBAR = re.compile(r'<li class="toctree-l1[^"]*"><a class="[^"]*" href="([^"#]+)"')

pytestmark = [pytest.mark.slow, pytest.mark.notebook, pytest.mark.browser, pytest.mark.extended]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first page of a site with one executed notebook. Sphinx fails on a broken link."""
    build = runpy.run_path(str(PROJECT / "docs" / "build.py"))["build"]
    return build(tmp_path_factory.mktemp("site"), [SHOWN])


@pytest.fixture(params=[(390, 844), (1400, 1000)], ids=["phone", "desktop"])
def screen(browser: Any, request: pytest.FixtureRequest) -> Any:
    width, height = request.param
    shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    return browser


def test_every_file_that_a_page_names_is_there(site: Path) -> None:
    missing = {
        f"{page.relative_to(site.parent)}: {target}"
        for page in site.parent.rglob("*.html")
        for target, _ in LINK.findall(page.read_text())
        if not (page.parent / unquote(target)).exists()
    }
    assert not missing


def test_the_sidebar_has_the_order_of_the_index(site: Path) -> None:
    index = site.parent / "docs" / "index.html"
    page = index.read_text()
    parts = page[page.index('<section id="tutorials">') : page.index("</article>")]
    paths = [os.path.normpath(index.parent / target) for target, _ in LINK.findall(parts)]
    shown = [os.path.normpath(site.parent / one) for one in IN_SIDEBAR.findall(site.read_text())]
    assert shown == [str(index), *dict.fromkeys(paths)]


def test_an_executed_notebook_shows_its_results_and_no_code(site: Path) -> None:
    page = (site.parent / "notebooks" / f"{SHOWN.stem}.html").read_text()
    answer = page[page.index('<section id="answer">') :]
    assert "cell_output" in answer
    assert "cell_input" not in page
    (file,) = re.findall(rf'href="([^"]*{SHOWN.name})"', page)
    assert "load(" in (site.parent / "notebooks" / file).read_text()


@pytest.mark.parametrize(
    "page", ["index.html", "notebooks/15_schedules.html", "figures/laptop/README.html"]
)
def test_a_page_fits_the_screen_and_loads_nothing_from_elsewhere(site, screen, page) -> None:
    screen.get((site.parent / page).as_uri())
    loaded = screen.execute_script(
        "return performance.getEntriesByType('resource').map(one => one.name)"
    )
    assert [one for one in loaded if not one.startswith(("file:", "data:"))] == []
    shown = screen.execute_script("return [...document.images].map(one => one.naturalWidth)")
    assert shown
    assert all(width > 0 for width in shown)
    width = screen.execute_script("return window.innerWidth")
    assert screen.execute_script("return document.documentElement.scrollWidth") <= width
    assert max(screen.execute_script(f"return {CELLS}"), default=0) <= width
    assert screen.execute_script(f"return {CUT_CODE}") == []
    assert min(screen.execute_script(f"return {FIGURES}")) >= MIN_FIGURE


def test_a_search_finds_the_page_on_a_subject(site: Path, browser: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{(site.parent / 'search.html').as_uri()}?q=learning+rate")
    found = WebDriverWait(browser, 20).until(
        lambda page: page.find_elements("css selector", "#search-results li a")
    )
    assert any("docs/" in one.get_attribute("href") for one in found)
