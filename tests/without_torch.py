"""Where requirements/train.txt is not installed: what needs its packages is skipped, not failed.

`make pythons` runs the tests with ``-p tests.without_torch``. There is no list of the tests that
need no torch: a test file that cannot be imported because a package of train.txt is missing, and a
test that fails for that reason, says so in its error.
"""

import re

import pytest

PACKAGES = (
    "crc32c|deepspeed|google|horovod|nvidia|pynvml|simplejpeg|skimage|sklearn|tfrecord|timm|torch"
)
# How Python, the errors of this project and importlib.metadata tell it.
MISSING = re.compile(
    rf"^E .*(No module named '(?:{PACKAGES})\w*|needs? the package '\w+|is not installed"
    rf"|NotInstalledError|No package metadata was found for (?:{PACKAGES}))",
    re.MULTILINE,
)


def _skip_what_is_missing(report):
    found = MISSING.search(report.longreprtext) if report.failed else None
    if found:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {found[1]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _skip_what_is_missing((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _skip_what_is_missing((yield))
