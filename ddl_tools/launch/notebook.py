"""Execute notebooks by papermill, in a kernel of this Python.

A run on this machine is a thread that drives papermill: the kernel of its notebook starts the
ranks. The executed copy of the notebook is kept with the run. jupyter is imported when needed.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

from ddl_core.errors import DDLError, Interrupted, LaunchError, NotInstalledError
from ddl_core.files import cannot_write
from ddl_core.origin import IN_CLONE, INSTALL, restored
from ddl_tools.launch.diagnose import tail
from ddl_tools.launch.parameters import of_run
from ddl_tools.processes import Passing, import_path
from ddl_tools.records.failures import classify
from ddl_tools.records.ledger import complete_text, finish_run, is_locked
from ddl_tools.records.paths import NOTEBOOKS, RunFiles, workplace
from ddl_tools.records.run import Failure, RunRecord, Status, read_record
from ddl_tools.records.storage import require_plain
from ddl_tools.visible import visible

RUN_NOTEBOOK = NOTEBOOKS / "01_run.ipynb"
KERNEL_START_S = 120
KERNEL_LOG = "kernel.log"
ERROR_LOG = "notebook.log"  # in the run's logs: the traceback of an error that was not expected
CANCEL_PATIENCE_S = 30.0
ASK_EVERY_S = 1.0


@contextmanager
def without_iri_grammar() -> Iterator[None]:
    """Import nbformat within this block: importing it alone takes 3 s more.

    jsonschema compiles a grammar for IRIs where `rfc3987_syntax` is installed. Notebooks have none.
    """
    name = "rfc3987_syntax"
    absent = name not in sys.modules
    if absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            sys.modules.pop(name, None)


def execute(
    notebook: Path,
    target: Path,
    parameters: dict[str, Any],
    on_kernel: Callable[[Any], None] = lambda manager: None,
) -> None:
    """Execute `notebook` with `parameters`; `target` then holds the executed copy.

    `target` is replaced in one step, also when a cell failed: it then shows the error.
    `on_kernel` is called with the manager of the kernel before it starts. `NotInstalledError` if a
    package is missing; `LaunchError` if the notebook does not take the parameters.
    """
    try:
        _check(notebook, parameters)
        _execute(notebook, target, parameters, on_kernel)
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise NotInstalledError(
            f"executing {notebook.name} needs the package {package!r}, which is not installed",
            remedy=f"run `{INSTALL}` to install it",
        ) from error


def _check(notebook: Path, parameters: Collection[str]) -> None:
    """Raise `LaunchError` unless this is a notebook in whose tagged cell parameters take effect.

    papermill would execute another one as it stands, and a run with the values that it names.
    """
    with without_iri_grammar():
        import nbformat

    try:
        book = nbformat.read(notebook, as_version=nbformat.NO_CONVERT)
        if book.nbformat != nbformat.current_nbformat:
            raise ValueError(f"nbformat {book.nbformat}, not {nbformat.current_nbformat}")
        tagged = [one.source for one in book.cells if "parameters" in one.metadata.get("tags", ())]
        missing = [name for name in parameters if not any(name in source for source in tagged)]
        if missing:
            raise ValueError(f"no cell with the tag 'parameters' names {', '.join(missing)}")
    except Exception as error:  # nbformat raises whatever its parts do
        problem = (str(error) or type(error).__name__).partition("\n")[0]
        raise LaunchError(
            f"{notebook} cannot be executed: {problem}",
            remedy=restored(notebook.parent),
            category="environment",
        ) from None


def _execute(
    notebook: Path, target: Path, parameters: dict[str, Any], on_kernel: Callable[[Any], None]
) -> None:
    with without_iri_grammar():
        import papermill
    from jupyter_core.utils import ensure_event_loop
    from papermill.exceptions import PapermillExecutionError

    # papermill writes the copy after every cell; until the end it is not whole.
    partial = target.with_name(f".{target.stem}.part.ipynb")
    loop = ensure_event_loop()  # jupyter makes one for this thread, and would leave it open
    try:
        with Passing() as sockets:
            # papermill's `cwd` would change that of this whole process, for other threads as well.
            place = notebook.parent if IN_CLONE else workplace()
            manager = _manager_class(Path(sockets), place, on_kernel)
            try:
                papermill.execute_notebook(
                    notebook,
                    partial,
                    parameters=parameters,
                    kernel_name="python3",  # of the manager; a notebook need not name one
                    language="python",
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
        said = f"{error.ename}: {error.evalue}".removesuffix(": ")
        if not error.traceback:  # the kernel reported no error: papermill has named it
            said = _printed(partial) or said
        raise LaunchError(
            f"{notebook.name} failed: {said}", category=classify(error.ename, said)
        ) from None
    finally:
        if not loop.is_running():
            loop.close()
        if partial.exists():
            try:
                partial.replace(target)
            except OSError as error:
                raise cannot_write(target, error) from None


def _printed(executed: Path) -> str:
    """Return the last line that the failed cell of a notebook has printed.

    A kernel that runs out of memory may only print its error where it would else report it.
    """
    import nbformat

    cells = nbformat.read(executed, as_version=nbformat.NO_CONVERT).cells
    failed = (one for one in cells if one.metadata.get("papermill", {}).get("exception"))
    texts = [out.get("text", "") for cell in failed for out in cell.get("outputs", ())]
    return next(iter("".join(texts).strip().splitlines()[-1:]), "")


def _manager_class(sockets: Path, directory: Path, on_kernel: Callable[[Any], None]) -> type[Any]:
    """Return a class of kernel managers that start this Python and talk to it by Unix sockets.

    The user's home may hold a kernel `python3` of another environment, and TCP on a shared node
    lets every user of it talk to the kernel. ipykernel itself opens one port on 127.0.0.1, which
    wants a secret. nbclient takes a class and makes the instance, which `on_kernel` gets.
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
            """Start the kernel, whose own output goes to a file, not into the user's terminal."""
            with (sockets / KERNEL_LOG).open("ab") as log:
                await super().start_kernel(**settings, cwd=str(directory), stderr=log)

        @property
        def pid(self) -> int | None:
            """Process of the kernel; None before it starts and after it ended."""
            return getattr(self.provisioner, "pid", None)

    return ThisPython


def submit(run_dir: Path) -> "LocalJob":
    """Start the planned run in `run_dir`, in a notebook kernel of its own, and return at once."""
    run_dir = Path(run_dir).resolve()
    record = read_record(run_dir)
    if record.status == "completed":
        raise LaunchError(complete_text(record, run_dir))
    if is_locked(run_dir):
        raise LaunchError(f"run {record.run_id} is being run by another process")
    return LocalJob(run_dir, record)


def cancel_all(jobs: Collection["LocalJob"]) -> None:
    """End runs and every process of them, all at once; a run that is complete stays complete."""
    deadline = time.monotonic() + CANCEL_PATIENCE_S
    while (left := [job for job in jobs if not job.ended]) and time.monotonic() < deadline:
        for job in left:
            job.interrupt()  # may come before the cell runs: ask again
        for job in left:
            job.join(ASK_EVERY_S / len(left))
    for job in left:
        job.kill()
    for job in left:
        job.join(CANCEL_PATIENCE_S)


class LocalJob:
    """A run that a thread of this process drives; `record` is what is known before it begins.

    `sentinel` is ready once it ends, see `multiprocessing.connection.wait`.
    """

    def __init__(self, run_dir: Path, record: RunRecord) -> None:
        self.run_dir = run_dir
        self._before = record
        self._kernel: Any = None
        self._error: DDLError | None = None
        self._stopped = False
        self.sentinel, self._end = Pipe(duplex=False)
        # A daemon: should this process end in spite of all, its kernel notices and ends the ranks.
        self._thread = Thread(target=self._drive, name=f"run {run_dir.name}", daemon=True)
        self._thread.start()

    @property
    def state(self) -> Status:
        """What the run's record says now."""
        return read_record(self.run_dir).status

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do for this run."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> RunRecord:
        """Wait for the end and return the record."""
        self._thread.join(timeout)
        if not self.ended:
            raise LaunchError(f"run {self.run_dir.name} has not ended within {timeout} s")
        record = read_record(self.run_dir)
        if record.status == "completed":
            if self._error:
                text = f"{record.run_id} is complete, but its notebook: {self._error}\n"
                sys.stderr.write(visible(text))
            return record
        if record.error:
            raise LaunchError(str(record.error))
        raise self._error or LaunchError(f"run {record.run_id} ended as {record.status!r}")

    def interrupt(self) -> None:
        """Ask the run to end, and do not wait for it."""
        self._stopped = True
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End the kernel, which takes the ranks along."""
        self._signal(signal.SIGKILL)

    def join(self, timeout: float) -> None:
        """Wait for the end, for so many seconds at most."""
        self._thread.join(timeout)

    def _drive(self) -> None:
        try:
            require_plain(self.run_dir)
            execute(
                RUN_NOTEBOOK,
                RunFiles(self.run_dir).notebook,
                of_run(self.run_dir, self._before),
                self._keep_kernel,
            )
        except BaseException as error:  # of any kind: nobody sees what a thread raises
            # A kernel that is interrupted while it starts does not survive.
            self._error = Interrupted("told to stop") if self._stopped else self._expected(error)
            try:
                if is_locked(self.run_dir) is False and self._is_unended():
                    finish_run(self.run_dir, Failure.of_error(self._error))
            except Exception as unwritten:  # it has the reason too
                self._error = self._expected(unwritten)
        finally:
            self._end.close()

    def _is_unended(self) -> bool:
        """Say whether the record lacks the end: the kernel did not start, or was killed."""
        record = read_record(self.run_dir)
        return record.status in ("planned", "submitted", "running") or record == self._before

    def _expected(self, error: BaseException) -> DDLError:
        """Return `error` as one of this project; the traceback of another one is kept."""
        if isinstance(error, DDLError):
            return error
        log = RunFiles(self.run_dir).logs / ERROR_LOG
        with suppress(OSError):
            log.parent.mkdir(exist_ok=True)
            log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        kind = type(error).__name__
        return LaunchError(
            f"the notebook of the run was not executed: {kind}: {error}",
            remedy=f"the traceback is in {log}",
            category=classify(kind, str(error)),
        )

    def _keep_kernel(self, manager: Any) -> None:
        self._kernel = manager

    def _signal(self, number: signal.Signals) -> None:
        pid = self._kernel.pid if self._kernel and not self.ended else None
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
