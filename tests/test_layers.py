"""The layer table holds: import-linter's contracts, and what they cannot see."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


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


def test_all_but_ranks_start_without_torch() -> None:
    """Registries import by name at run time, which no reader of import statements notices."""
    code = (
        "import pkgutil, importlib, sys\n"
        # Not None in sys.modules: SciPy, which seaborn imports, takes what it finds there as torch.
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'torchvision'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import ddl_core\n"
        "for module in pkgutil.walk_packages(ddl_core.__path__, 'ddl_core.'):\n"
        "    if not module.name.startswith(('ddl_core.train', 'ddl_core.doctor.probe.')):\n"
        "        if not module.name.endswith('__main__'):\n"
        "            try:\n"
        "                importlib.import_module(module.name)\n"
        "            except ModuleNotFoundError as error:\n"  # of a library: elsewhere
        "                of = error.name.split('.')[0]\n"
        "                libraries = module.name.startswith('ddl_core.libraries.')\n"
        "                if not libraries or of in ('torch', 'torchvision', 'ddl_core'):\n"
        "                    raise\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
