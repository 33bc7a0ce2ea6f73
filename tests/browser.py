"""A real browser without a window, for the tests that look at pages as readers do."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = {"chromium": "chromium", "chromedriver": "chromium-driver"}  # and Debian's packages
FLAGS = (
    "--headless",
    "--no-sandbox",  # else root cannot start it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1600",
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Chromium without a window, and nothing of its own in the user's home."""
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        text = f"needs the Debian packages {' and '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(flag)
    # Named, so that selenium looks for no other driver on the network.
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()
