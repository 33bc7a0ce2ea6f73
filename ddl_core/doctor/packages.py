"""The installed packages, each asked in a process of its own.

One that hangs or crashes at import is then a finding instead of the end of the doctor.
"""

import platform
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

from ddl_core.doctor.finding import Finding, State
from ddl_core.records.paths import PROJECT

PATIENCE_S = 120.0
ANSWER = "ddl doctor: "  # begins the one line that counts; packages print much at import
REMEDY = "make env"

# What each package has to tell, as an expression over the modules it imports.
PROBES = {
    "torch": """
import torch
cuda = torch.version.cuda
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
built = f"for CUDA {cuda}" if cuda else "for the CPU"
say(torch.__version__, built, *(gpus or ["sees no GPU"]))
""",
    "torchvision": """
from ddl_core.train.vision import torchvision
say(torchvision.__version__)
""",
    "horovod": """
import horovod, horovod.torch as hvd
built = {"Gloo": hvd.gloo_built(), "MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built()}
say(horovod.__version__, "with " + " ".join(name for name in built if built[name]))
""",
    "deepspeed": """
import deepspeed
from deepspeed.accelerator import get_accelerator
say(deepspeed.__version__, "accelerator " + get_accelerator().device_name())
""",
}

# Asked for their version only: what they need is tested by using them.
INSTALLED = ("papermill", "jupyterlab", "ipyparallel")
DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda110")
NEEDED_BY_ALL = ("torch", "torchvision", "papermill")


def examine(strategies: Collection[str]) -> list[Finding]:
    """Return a finding per package; without those of `strategies` nothing can run."""
    needed = {*NEEDED_BY_ALL, *strategies}
    with ThreadPoolExecutor(max_workers=2) as pool:
        asked = list(pool.map(lambda name: ask(name, name in needed), PROBES))
    return [
        Finding("python", "ok", platform.python_version()),
        *asked,
        *(installed(name, name in needed) for name in INSTALLED),
        _dali(),
    ]


def ask(name: str, required: bool = False, patience_s: float = PATIENCE_S) -> Finding:
    """Import a package of `PROBES` in a process of its own and report what it says."""
    head = f"def say(*parts): print({ANSWER!r} + ', '.join(map(str, parts)))\n"
    if (found := installed(name, required)).state != "ok":
        return found
    state: State = "bad" if required else "warn"
    try:
        done = subprocess.run(
            [sys.executable, "-c", head + PROBES[name]],
            capture_output=True,
            text=True,
            timeout=patience_s,
            cwd=PROJECT,  # a checkout need not be installed
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Finding(name, state, f"import took over {patience_s:.0f} s", REMEDY)
    said = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if done.returncode == 0 and said:
        return Finding(name, "ok", said[0].removeprefix(ANSWER))
    last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Finding(name, state, f"broken: {last}", f"rm -r .venv; {REMEDY}")


def installed(name: str, required: bool) -> Finding:
    """Report the version of a package without importing it."""
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "bad" if required else "warn", "not installed", REMEDY)


def _dali() -> Finding:
    found = [one for name in DALI if (one := installed(name, False)).state == "ok"]
    if found:
        return Finding("dali", "ok", f"{found[0].detail} ({found[0].subject})")
    detail = "not installed; loaders dali_cpu and dali_gpu need it"
    return Finding("dali", "warn", detail, REMEDY)
