"""The layer table holds: import-linter's contracts, and what they cannot see."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
CONFIG = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract for contract in CONFIG["contracts"]}

# Who is free of a contract; "frameworks" and the layer contracts cover every module by themselves.
# cli is free of all: it is thin, and the last test runs it.
EXEMPT = {
    "torch": "cli worker probe checkpoint accelerator train fairness coverage bench profiling "
    "strategies loaders models optim timing energy protocols vision",
    "tables": "cli analysis scaling",
    "notebooks": "cli launchers",
}


def test_contracts_are_kept(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as lint; lint()",
    ]
    done = subprocess.run(
        [*command, "--no-logo", "--cache-dir", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", EXEMPT)
def test_contract_forgets_no_module(name: str) -> None:
    modules = {
        entry.stem
        for entry in (PROJECT / "ddl_core").iterdir()
        if entry.name != "__init__.py"
        and (entry.suffix == ".py" or (entry / "__init__.py").exists())
    }
    covered = {source.removeprefix("ddl_core.") for source in CONTRACTS[name]["source_modules"]}
    assert covered == modules - set(EXEMPT[name].split())


def test_command_line_and_analysis_start_without_torch() -> None:
    """Registries import by name at run time, which no reader of import statements notices."""
    code = (
        "import pkgutil, importlib, sys\n"
        "sys.modules['torch'] = sys.modules['torchvision'] = None\n"
        "import ddl_core.analysis, ddl_core.cli\n"
        "for module in pkgutil.walk_packages(ddl_core.analysis.__path__, 'ddl_core.analysis.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
