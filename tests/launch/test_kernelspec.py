"""The kernel of `ddl kernel install`: what it is made of, and that Jupyter can start it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from jupyter_client.manager import KernelManager

from ddl_tools.launch.kernelspec import Kernel
from ddl_tools.launch.slurm.site import known_sites
from ddl_tools.records.paths import PROJECT
from tests.launch.running import ddl
from tests.launch.stand_ins import StandIns


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of Jupyter that belongs to the test."""
    folder = tmp_path / "jupyter"
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    return folder


def install(*options: object, status: int = 0) -> Result:
    return ddl("kernel", "install", *options, status=status)


def test_installing_is_repeatable(data: Path) -> None:
    for _ in range(2):
        done = install("--name", "ddl-test")
    folder = data / "kernels" / "ddl-test"
    assert str(folder) in done.output
    assert {path.name for path in folder.iterdir()} == {"kernel.json", "kernel.sh"}
    assert os.access(folder / "kernel.sh", os.X_OK)


def test_a_prefix_is_where_a_group_finds_it(data: Path, tmp_path: Path) -> None:
    install("--prefix", tmp_path / "group")
    assert (tmp_path / "group/share/jupyter/kernels/ddl/kernel.sh").exists()
    assert not data.exists()
    install("--prefix", tmp_path, "--user", status=2)


def test_dry_run_writes_nothing(data: Path) -> None:
    done = install("--site", "juwels_booster", "--dry-run")
    assert "module load Stages/" in done.output
    assert "--mpi=pspmix" in done.output  # its Horovod meets over MPI, from a notebook too
    assert '"display_name": "ddl (juwels_booster)"' in done.output
    assert not data.exists()


def test_a_kernel_that_is_not_ours_is_left_alone(data: Path) -> None:
    foreign = data / "kernels" / "ddl" / "kernel.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_text('{"argv": [], "metadata": {}}')
    done = install(status=1)
    assert "holds a kernel that `ddl kernel install` has not made" in done.output
    assert foreign.read_text() == '{"argv": [], "metadata": {}}'


@pytest.mark.parametrize("name", ["DDL", "a b", "-x", "../up"])
def test_names_that_portals_refuse_and_a_folder_that_is_a_file(name: str, data: Path) -> None:
    done = install("--name", name, status=1)
    assert "small letters, digits" in done.output
    assert not data.exists()
    data.write_text("a file")
    done = install(status=1)
    assert f"cannot write the kernel to {data / 'kernels' / 'ddl'}" in done.output


@pytest.mark.parametrize("site", known_sites())
def test_bash_can_read_the_script_of_every_site(site: str) -> None:
    subprocess.run(["bash", "-n"], input=Kernel(site=site).script(), text=True, check=True)


@pytest.mark.notebook
def test_jupyter_starts_it(
    tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With modules, variables and an allocation, all of which are there for the kernel to see."""
    site = tmp_path / "here.toml"
    site.write_text(
        'description = "a test"\ncpus_per_rank = 2\nmaster_suffix = "i"\n'
        'modules = ["Stages/1", "Python"]\n[environment]\nOF_SITE = "$HOME/there"\n'
    )
    called = tmp_path / "module.calls"
    # A site's `module` is a function that its shells inherit.
    monkeypatch.setenv("BASH_FUNC_module%%", f'() {{ echo "$@" >>{called}; }}')
    stand_ins.add("scontrol", "node1\nnode2\n")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    install("--site", site)
    (tmp_path / "beside.py").write_text("")  # the notebook

    code = (
        "import json, os, sys, ddl_core; "
        "from ddl_tools.launch.commands import Allocation; "
        "names = ['OF_SITE', 'MASTER_ADDR']; "
        "import beside; "
        "assert 'SRUN_CPUS_PER_TASK' not in os.environ; "  # srun refuses an empty one
        "assert 'PYTHONSAFEPATH' not in os.environ; "
        "print(json.dumps([ddl_core.__file__, sys.executable, Allocation.current().srun, "
        "*[os.environ[name] for name in names]]))"
    )
    printed: list[dict[str, Any]] = []
    # Required of the server by some sites; the kernel's description has to offer it.
    manager = KernelManager(kernel_name="ddl", transport_encryption="required")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=120)
        reply = client.execute_interactive(
            code, timeout=60, output_hook=lambda message: printed.append(message["content"])
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy()
    assert reply["content"]["status"] == "ok", printed
    (line,) = [content["text"] for content in printed if content.get("name") == "stdout"]
    where, python, srun, of_site, address = json.loads(line)
    assert Path(where) == PROJECT / "ddl_core" / "__init__.py"
    assert python == sys.executable
    assert srun[0] == "srun"
    assert "--cpus-per-task=2" in srun
    assert of_site == f"{os.environ['HOME']}/there"
    assert address == "node1i"
    assert called.read_text().splitlines() == ["purge", "load Stages/1 Python"]
