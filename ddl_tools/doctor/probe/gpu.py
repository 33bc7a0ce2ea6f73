"""State of a rank's GPU while it works: its memory's errors, its clock and its links."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import torch

from ddl_tools import gpus
from ddl_tools.records.probe import Gpu

SIDE = 4096  # of the matrices that keep the GPU busy
_LINK = re.compile(r"Link \d+: ([\d.]+) GB/s")


def state(device: torch.device, uuid: str) -> Gpu:
    """Return the state of a GPU, which multiplies matrices meanwhile: idle, its clock is low."""
    matrix = torch.ones((SIDE, SIDE), dtype=torch.float16, device=device)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(told, uuid)
        while not asked.done():
            torch.mm(matrix, matrix)
            torch.cuda.synchronize(device)
        return asked.result()


def told(uuid: str) -> Gpu:
    """Return what nvidia-smi says of a GPU; nothing where it does not know it."""
    name = f"GPU-{uuid.removeprefix('GPU-')}"
    links = _links(name)  # first: the clock settles meanwhile
    pending = _row(name, "gpu_uuid,remapped_rows.pending", "remapped-rows")
    fields = "uuid,ecc.errors.uncorrected.volatile.total,clocks.sm,clocks.max.sm"
    errors, clock, most = (*map(_number, _row(name, fields)), None, None, None)[:3]
    return Gpu(
        uncorrected_ecc=errors,
        pending_rows={"0": False, "No": False, "1": True, "Yes": True}.get("".join(pending)),
        clock_mhz=clock,
        clock_max_mhz=most,
        nvlink_bytes_per_s=links,
    )


def _row(name: str, fields: str, of: str = "gpu") -> list[str]:
    """Return the fields of one GPU without its name; none if there is no such GPU."""
    lines = (line.split(", ") for line in gpus.ask(fields, "csv,noheader,nounits", of=of))
    return next((words[1:] for words in lines if words[0].strip() == name), [])


def _number(text: str) -> int | None:
    """Return a number; None for ``[N/A]``, as of memory without error correction."""
    return int(text) if text.strip().isdecimal() else None


def _links(name: str) -> float | None:
    """Return the rate of all NVLinks of a GPU together, in one direction; None without any."""
    command = ["nvidia-smi", "nvlink", "--status", "-i", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=gpus.PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return None
    rates = [float(rate) for rate in _LINK.findall(done.stdout)]
    return sum(rates) * 1e9 if rates else None
