"""Execute notebooks by papermill, in a kernel that is certain to be this Python.

The executed copy of a run's notebook is its lab book. jupyter is imported when needed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddl_core.errors import Interrupted, LaunchError
from ddl_core.files import cannot_write
from ddl_core.system import Passing
from ddl_tools.launch.diagnose import tail
from ddl_tools.processes import import_path
from ddl_tools.records.failures import classify
from ddl_tools.records.paths import NOTEBOOKS, RunFiles

RUN_NOTEBOOK = NOTEBOOKS / "01_run.ipynb"
KERNEL_START_S = 120
KERNEL_LOG = "kernel.log"


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
        Called with the kernel's manager before it starts; its `pid` is the kernel's process.

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
    from jupyter_core.utils import ensure_event_loop
    from papermill.exceptions import PapermillExecutionError

    _check_parameters(papermill, notebook, parameters)
    # papermill writes the copy after every cell; until the end that is not yet the lab book.
    partial = target.with_name(f".{target.stem}.part.ipynb")
    loop = ensure_event_loop()  # jupyter makes one for this thread, and would leave it open
    try:
        with Passing() as sockets:
            # papermill's `cwd` would change that of this whole process, for other threads as well.
            manager = _manager_class(Path(sockets), notebook.parent, on_kernel)
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
                said = f"{error}{tail(Path(sockets) / KERNEL_LOG)}"
                raise LaunchError(
                    f"the kernel of {notebook.name} did not survive: {said}",
                    category=classify("Killed", said),
                ) from None
    except PapermillExecutionError as error:
        if error.ename == KeyboardInterrupt.__name__:
            raise Interrupted(f"{notebook.name} was told to stop") from None
        raise LaunchError(f"{notebook.name} failed: {error.ename}: {error.evalue}") from None
    finally:
        if not loop.is_running():
            loop.close()
        if partial.exists():
            _keep(partial, target)


def _keep(partial: Path, target: Path) -> None:
    try:
        partial.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from None


def _manager_class(sockets: Path, directory: Path, on_kernel: Callable[[Any], None]) -> type[Any]:
    """Return a class of kernel managers that ask no kernel specification and open no network port.

    The user's home may hold a kernel `python3` of another environment, and TCP on a shared node
    lets every user of it talk to the kernel. So: this executable, and sockets in a private folder.
    nbclient takes a class and no instance, hence `on_kernel` is told of the one that it makes.
    """
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    spec = KernelSpec(
        # At its end nbclient interrupts the kernel, which it would otherwise log as an error.
        argv=[
            *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
            "--log-level=CRITICAL",
        ],
        display_name="Python 3",
        language="python",
        env={
            "PYTHONPATH": import_path(),
            "IPYTHONDIR": str(sockets),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        },
    )

    class ThisPython(AsyncKernelManager):
        kernel_spec = spec

        def __init__(self, **settings: Any) -> None:
            connection = str(sockets / "kernel.json")
            super().__init__(transport="ipc", connection_file=connection, **settings)
            on_kernel(self)

        async def start_kernel(self, **settings: Any) -> None:  # type: ignore[override]
            """Start the kernel; what it says itself goes to a file, not into the user's terminal.

            Told to end while it is being interrupted, it may complain of its own closed sockets.
            """
            with (sockets / KERNEL_LOG).open("ab") as log:
                await super().start_kernel(**settings, cwd=str(directory), stderr=log)

        @property
        def pid(self) -> int | None:
            """Process of the kernel; None before it starts and after it ended."""
            return getattr(self.provisioner, "pid", None)

    return ThisPython


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
