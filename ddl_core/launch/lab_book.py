"""Execute the run notebook by papermill; the executed copy is the run's lab book."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddl_core.errors import Interrupted, LaunchError
from ddl_core.launch.diagnose import tail
from ddl_core.private import Passing
from ddl_core.records.failures import classify
from ddl_core.records.paths import NOTEBOOKS, RunFiles
from ddl_core.records.storage import cannot_write

RUN_NOTEBOOK = NOTEBOOKS / "01_run.ipynb"
KERNEL_START_S = 120


def execute(
    notebook: Path,
    target: Path,
    parameters: dict[str, Any],
    on_kernel: Callable[[Any], None] = lambda manager: None,
) -> None:
    """Execute `notebook` with `parameters`; `target` then holds the executed copy.

    Parameters
    ----------
    notebook
        Never changed.
    target
        Replaced in one step, also when a cell failed: the error is part of the lab book.
    parameters
        Values of variables in the cell tagged ``parameters``.
    on_kernel
        Called with the kernel's manager (`notebook_kernel.ThisPython`) before it starts.

    Raises
    ------
    Interrupted
        If Ctrl-C, or what called, interrupted a cell.
    LaunchError
        If a parameter is unknown, the kernel cannot start or dies, or a cell raises.
    RecordError
        If the copy cannot be written.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    from ddl_core.launch.notebook_kernel import LOG, event_loop, manager_class

    _check_parameters(papermill, notebook, parameters)
    # papermill writes the copy after every cell; until the end that is not yet the lab book.
    partial = target.with_name(f".{target.stem}.part.ipynb")
    try:
        with event_loop(), Passing() as sockets:
            # papermill's `cwd` would change that of this whole process, for other threads as well.
            manager = manager_class(Path(sockets), notebook.parent, on_kernel)
            try:
                papermill.execute_notebook(
                    notebook,
                    partial,
                    parameters=parameters,
                    kernel_manager_class=manager,
                    progress_bar=False,
                    start_timeout=KERNEL_START_S,
                )
            except (RuntimeError, OSError) as error:
                said = f"{error}{tail(Path(sockets) / LOG)}"
                raise LaunchError(
                    f"the kernel of {notebook.name} did not survive: {said}",
                    category=classify("Killed", said),
                ) from None
    except PapermillExecutionError as error:
        if error.ename == KeyboardInterrupt.__name__:
            raise Interrupted(f"{notebook.name} was told to stop") from None
        raise LaunchError(f"{notebook.name} failed: {error.ename}: {error.evalue}") from None
    finally:
        if partial.exists():
            _keep(partial, target)


def _keep(partial: Path, target: Path) -> None:
    try:
        partial.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from None


def _check_parameters(papermill: Any, notebook: Path, parameters: dict[str, Any]) -> None:
    """Refuse unknown names, about which papermill only warns."""
    known = papermill.inspect_notebook(notebook)
    if unknown := sorted(parameters.keys() - known.keys()):
        raise LaunchError(
            f"{notebook.name} has no parameter {', '.join(unknown)}; "
            f"its parameters are: {', '.join(sorted(known)) or 'none'}"
        )


def write_lab_book(run_dir: Path, on_kernel: Callable[[Any], None] = lambda manager: None) -> None:
    """Execute the run in `run_dir` through its notebook; see `execute`."""
    target = RunFiles(run_dir).notebook
    execute(RUN_NOTEBOOK, target, {"run_dir": str(run_dir)}, on_kernel)
