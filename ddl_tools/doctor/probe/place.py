"""Where a rank is: cores, interfaces, limits, caches; and the cores of its loader's processes."""

import os
import re
import resource
import shutil
import socket
import tempfile
from pathlib import Path

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_core.group import RankInfo
from ddl_core.loaders.native import start_method
from ddl_core.system import caches
from ddl_tools.records.probe import Answer, Folder, Interface
from ddl_tools.records.provenance import file_system

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
VISIBLE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
CACHE_VARIABLES = re.compile(
    r"XDG_CACHE_HOME|MPLCONFIGDIR|TORCH_HOME|TORCH_EXTENSIONS_DIR|TRITON_CACHE_DIR|MIOPEN_\w+(PATH|DIR)"
)
SHARED_MEMORY = Path("/dev/shm")
LOADER_PATIENCE_S = 100.0  # less than what the launcher waits for a step


def describe(rank: RankInfo) -> Answer:
    """Return what a rank can tell alone and at once."""
    return Answer(
        rank=rank.rank,
        local_rank=rank.local_rank,
        host=socket.gethostname(),
        cores=sorted(os.sched_getaffinity(0)),
        visible=_set(VISIBLE_VARIABLES),
        wanted_interfaces=_set(INTERFACE_VARIABLES),
        interfaces=interfaces(),
        shared_memory_bytes=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        caches=[_cache(name, Path(os.environ[name])) for name in _cache_variables()],
    )


def interfaces() -> list[Interface]:
    """Return the network interfaces of this host, with their IP addresses."""
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        numbers = [
            one.address for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6)
        ]
        found.append(Interface(name=name, addresses=numbers, speed_mbit_per_s=_speed(name)))
    return found


def used_interfaces(known: list[Interface]) -> list[str]:
    """Return the interfaces of this process's TCP connections, but those to the meeting place.

    With Gloo they carry the data. With NCCL they only arrange what may then go by other ways:
    NVLink, shared memory, InfiniBand.
    """
    meeting = int(os.environ.get("MASTER_PORT", 0))
    owner = {address.split("%")[0]: one.name for one in known for address in one.addresses}
    used = set()
    for link in psutil.Process().net_connections("tcp"):
        if link.status == psutil.CONN_ESTABLISHED and meeting not in (
            link.laddr.port,
            link.raddr.port,
        ):
            used.add(owner.get(link.laddr.ip.removeprefix("::ffff:"), link.laddr.ip))
    return sorted(used)


def _set(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _speed(name: str) -> int | None:
    try:
        speed = int(Path(f"/sys/class/net/{name}/speed").read_text(encoding="ascii"))
    except (OSError, ValueError):  # a virtual one has no speed
        return None
    return speed if speed > 0 else None


def _cache_variables() -> list[str]:
    return sorted(name for name in os.environ if CACHE_VARIABLES.fullmatch(name))


def _cache(variable: str, folder: Path) -> Folder:
    """Make the folder and a file in it, as a library would."""
    try:
        caches()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
        error = None
    except LaunchError as refused:
        error = str(refused)
    except OSError as failure:
        error = failure.strerror or str(failure)
    return Folder(variable=variable, path=str(folder), file_system=file_system(folder), error=error)


class _Cores(Dataset[tuple[int, list[int]]]):
    """Item n: the cores that the loader process may use which is asked for it."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def __len__(self) -> int:
        return self._workers

    def __getitem__(self, number: int) -> tuple[int, list[int]]:
        return number, sorted(os.sched_getaffinity(0))


def _as_they_are(items: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    return items


def loader_cores(spec: RunSpec, device: torch.device) -> list[list[int]]:
    """Return the cores of each loader process, started as a run's are; empty without any."""
    workers = spec.loader_workers
    if workers == 0:
        return []
    loader = DataLoader(
        _Cores(workers),
        batch_size=1,  # torch hands batch n to process n
        num_workers=workers,
        collate_fn=_as_they_are,
        timeout=LOADER_PATIENCE_S,
        multiprocessing_context=start_method(spec, device),
    )
    return [cores for batch in loader for _, cores in batch]
