"""A site's modules, loaded by a real module system: Lmod or Environment Modules.

A machine has one of the two. Debian has both, which exclude one another: packages `lmod` and
`environment-modules`.
"""

import subprocess
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_tools.doctor import login_node
from ddl_tools.launch.slurm.script import template
from ddl_tools.launch.slurm.site import Site
from ddl_tools.records.paths import results
from tests.commands import run

# What such a system has the shell of a batch job read first: BASH_ENV.
INITS = {
    "Lmod": Path("/usr/share/lmod/lmod/init/bash"),
    "Environment Modules": Path("/usr/share/modules/init/bash"),
}
MODULE = """\
#%Module
setenv MADE_HOME /opt/made
prepend-path PATH /opt/made/bin
prepend-path PYTHONPATH /opt/made/python
"""


@pytest.fixture(params=INITS)
def variables(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The variables of a job on a machine that has a module ``made/1.0``."""
    init = INITS[request.param]
    if not init.exists():
        pytest.skip(f"{request.param} is not installed")
    modules = tmp_path / "modules" / "made"
    modules.mkdir(parents=True)
    (modules / "1.0").write_text(MODULE)
    monkeypatch.setenv("MODULEPATH", str(modules.parent))
    monkeypatch.setenv("HOME", str(tmp_path))  # with caches, and files of a login shell
    return {"BASH_ENV": str(init), "MODULEPATH": str(modules.parent)}


def in_job(modules: list[str], variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Execute the lines of a job script that make its environment; then show it."""
    lines = template("environment.sh.j2").render(modules=modules, environment={}, setup=[])
    return run("bash", "-c", f"set -e\n{lines}\necho ready; env", **variables)


def test_a_job_loads_the_modules_of_its_site(variables: dict[str, str]) -> None:
    done = in_job(["made/1.0"], variables)
    assert done.returncode == 0, done.stderr
    assert "MADE_HOME=/opt/made\n" in done.stdout
    path = next(one for one in done.stdout.splitlines() if one.startswith("PATH="))
    assert path.startswith("PATH=/opt/made/bin:")
    assert "/opt/made/python" in done.stdout


def test_a_job_ends_at_a_module_that_is_not_there(variables: dict[str, str]) -> None:
    done = in_job(["made/1.0", "made/9.9"], variables)
    assert done.returncode != 0
    assert "ready" not in done.stdout
    assert "made/9.9" in done.stderr


@pytest.mark.parametrize(("name", "state"), [("made/1.0", "ok"), ("made/9.9", "bad")])
def test_the_doctor_tries_them(variables: dict[str, str], name: str, state: str) -> None:
    site = Site.model_validate({"description": "x", "modules": ["made/1.0", name]})
    findings = login_node.examine(site, RunSpec(), results())
    found = next(one for one in findings if one.subject == "modules")
    assert found.state == state, found
    assert name in found.detail
