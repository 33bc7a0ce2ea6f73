"""Say what a build of torch costs that no GPU here would use, before pip downloads it.

Called by `make env` with the Python of the new environment; says nothing where the build fits the
machine, and never stops anything.

pip is asked which file of torch it would take, and ended as soon as it names it: older releases of
pip download the whole file in order to learn its dependencies.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

PATIENCE = 20  # seconds: an index that does not answer is pip's to report, when it installs
WHEEL = re.compile(r"\btorch-[\w.+%]+-[\w.]+-[\w.]+-[\w.]+\.whl")
# Measured with torch 2.13.0 on x86-64: torch, triton and the CUDA packages, and the whole .venv.
NOTE = """\
note: pip takes torch with CUDA here ({file}),
  and this machine shows no GPU. That works, but is 2.7 GB to download instead of 0.2, and makes
  .venv more than twice as large. For a CPU build: stop this (Ctrl-C), and call make again with
  TORCH_INDEX=URL, the index that pytorch.org/get-started names for "CPU" (or with
  PIP_FIND_LINKS=DIR, a folder with the wheels of torch and torchvision for the CPU).
"""

AMD = """\
note: pip takes a torch here that does not know AMD's GPUs ({file}),
  and this machine has AMD's driver. For its GPUs: stop this (Ctrl-C), and call make again with
  TORCH_INDEX=URL, the index that pytorch.org/get-started names for "ROCm".
"""


def has_gpu() -> bool:
    """Tell whether an NVIDIA driver is there."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def has_amd() -> bool:
    """Tell whether AMD's driver for computing is there."""
    return Path("/dev/kfd").exists()


def pinned(requirements: Path) -> str:
    """Return the pin of torch."""
    (pin,) = re.findall(r"^torch==[\w.]+", requirements.read_text(), re.MULTILINE)
    return str(pin)


def chosen_file(pin: str) -> str | None:
    """Return the name of the wheel that pip would install, None if it does not say."""
    command = [sys.executable, "-u", "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    with tempfile.TemporaryDirectory() as folder:  # what pip leaves when it is ended
        environment = {**os.environ, "TMPDIR": folder}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with subprocess.Popen([*command, *options, pin], env=environment, **output) as process:
            timer = threading.Timer(PATIENCE, process.kill)
            timer.start()
            found = next(filter(None, map(WHEEL.search, process.stdout or ())), None)
            timer.cancel()
            process.kill()
    return found[0].replace("%2B", "+") if found else None


def main() -> None:
    """Print the note, if there is one."""
    if not sys.platform.startswith("linux") or has_gpu():
        return
    file = chosen_file(pinned(Path(__file__).parent / "train.txt"))
    if file is None or "+rocm" in file:
        return
    # An index without a build for the CPU serves the one with CUDA under the plain version.
    if has_amd():
        sys.stdout.write(AMD.format(file=file))
    elif "+cpu" not in file:
        sys.stdout.write(NOTE.format(file=file))


if __name__ == "__main__":
    main()
