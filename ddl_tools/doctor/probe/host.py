"""Host of a rank: cores, interfaces, limits, caches, and the rate of reading images."""

import os
import random
import re
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from ddl_core.config import RunSpec
from ddl_core.data.formats import EncodedDataset, open_format
from ddl_core.data.image import UNREADABLE, open_rgb
from ddl_core.data.tfrecord import RecordList
from ddl_core.errors import LaunchError
from ddl_core.files import drop_cached
from ddl_core.loaders.native import start_method
from ddl_core.strategies import RankInfo
from ddl_tools.processes import caches
from ddl_tools.records.paths import locate
from ddl_tools.records.probe import Answer, Folder, Interface, ProbeRecord, Reading
from ddl_tools.records.provenance import file_system

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
VISIBLE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
CACHE_VARIABLES = re.compile(
    r"XDG_CACHE_HOME|MPLCONFIGDIR|TORCH_HOME|TORCH_EXTENSIONS_DIR|TRITON_CACHE_DIR|MIOPEN_\w+(PATH|DIR)"
)
SHARED_MEMORY = Path("/dev/shm")
NETWORK = Path("/sys/class/net")
LOADER_TIMEOUT_S = 100.0  # less than what the launcher waits for a step
MAX_IMAGES = 512  # of each rank
MAX_CLASSES = 32  # folders listed: all of ImageNet's would take minutes on some file systems
MAX_DECODED = 64
DECODE_S = 5.0


def describe(rank: RankInfo) -> Answer:
    """Return the part of a rank's answer that needs no other rank."""
    return Answer(
        rank=rank.rank,
        local_rank=rank.local_rank,
        host=socket.gethostname(),
        cores=sorted(os.sched_getaffinity(0)),
        visible=_variables(VISIBLE_VARIABLES),
        wanted_interfaces=_variables(INTERFACE_VARIABLES),
        interfaces=[
            _interface(name, addresses) for name, addresses in sorted(psutil.net_if_addrs().items())
        ],
        shared_memory_bytes=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        caches=[
            _cache(name, Path(os.environ[name]))
            for name in sorted(os.environ)
            if CACHE_VARIABLES.fullmatch(name)
        ],
    )


def _variables(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _interface(name: str, addresses: list[Any]) -> Interface:
    numbers = [
        address.address
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    about = NETWORK / name
    try:
        speed = int((about / "speed").read_text(encoding="utf-8"))
        # One end of a pipe into a container says 10 Gbit/s, whatever carries it.
        ends = [(about / file).read_text(encoding="utf-8") for file in ("iflink", "ifindex")]
        if ends[0] != ends[1] and not any(about.glob("lower_*")):
            speed = 0
    except (OSError, ValueError):  # a virtual one has no speed
        speed = 0
    return Interface(name=name, addresses=numbers, speed_mbit_per_s=speed if speed > 0 else None)


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


def used_interfaces(known: list[Interface]) -> list[str]:
    """Return the interfaces of this process's TCP connections to other ranks.

    Gloo sends the data over them. NCCL may send it over NVLink, shared memory or InfiniBand.
    """
    meeting = int(os.environ.get("MASTER_PORT", 0))
    owner = {address.split("%")[0]: one.name for one in known for address in one.addresses}
    return sorted(
        {
            owner.get(link.laddr.ip.removeprefix("::ffff:"), link.laddr.ip)
            for link in psutil.Process().net_connections("tcp")
            if link.status == psutil.CONN_ESTABLISHED
            and meeting not in (link.laddr.port, link.raddr.port)
        }
    )


class _Cores(Dataset[list[int]]):
    """Items: the cores of the loader process that returns the item."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def __len__(self) -> int:
        return self._workers

    def __getitem__(self, number: int) -> list[int]:
        return sorted(os.sched_getaffinity(0))


def loader_cores(spec: RunSpec, device: torch.device) -> list[list[int]]:
    """Return the cores of each loader process, started as a run's are; empty without any."""
    if spec.loader_workers == 0:
        return []
    loader = DataLoader(
        _Cores(spec.loader_workers),
        batch_size=None,  # torch hands item n to process n
        num_workers=spec.loader_workers,
        timeout=LOADER_TIMEOUT_S,
        multiprocessing_context=start_method(spec, device),
    )
    return list(loader)


def read_sample(record: ProbeRecord, data_dir: str, rank: int) -> Reading:
    """Read a rank's sample twice, with as many threads as the run has loader processes."""
    images, numbers, files, shards = _sample(record, locate(data_dir), rank)
    drop_cached(files)
    threads = max(1, record.spec.loader_workers)
    sizes, cold_s = _read(images, numbers, threads, record.reading_limit_s / 2)
    numbers = numbers[: len(sizes)]
    _, warm_s = _read(images, numbers, threads, None)
    decoded, decode_s = _decode([images.read(number)[0] for number in numbers[:MAX_DECODED]])
    return Reading(
        images=len(sizes),
        bytes=sum(sizes),
        threads=threads,
        cold_s=cold_s,
        warm_s=warm_s,
        decode_s=decode_s,
        decoded=decoded,
        shards=shards,
    )


def _sample(
    record: ProbeRecord, data_dir: Path, rank: int
) -> tuple[EncodedDataset, list[int], set[str], int | None]:
    """Return a data set, numbers drawn from it, their files, and the number of shards.

    No two ranks draw the same number, and each probe draws others.
    """
    chance = random.Random(record.name)

    def share(images: int) -> list[int]:
        ranks = record.spec.world_size
        return chance.sample(range(images), min(images, MAX_IMAGES * ranks))[rank::ranks]

    images = open_format(record.spec.data_format, data_dir).some_images(chance, MAX_CLASSES)
    numbers = share(len(images))
    files = images.paths(np.array(numbers, dtype=np.int64))
    shards = len(images.shards) if isinstance(images, RecordList) else None
    return images, numbers, files, shards


def _read(
    images: EncodedDataset, numbers: Iterable[int], threads: int, limit_s: float | None
) -> tuple[list[int], float]:
    """Read images in threads until the time is up; return their sizes and the seconds."""
    begun = time.perf_counter()

    def size(number: int) -> int | None:
        late = limit_s is not None and time.perf_counter() - begun > limit_s
        return None if late else len(images.read(number)[0])

    with ThreadPoolExecutor(threads) as pool:
        sizes = [size for size in pool.map(size, numbers) if size is not None]
    return sizes, time.perf_counter() - begun


def _decode(contents: list[bytes]) -> tuple[int, float]:
    """Return how many images one thread decoded, and its CPU seconds."""
    begun, decoded = time.process_time(), 0
    for content in contents:
        if time.process_time() - begun > DECODE_S:
            break
        try:
            open_rgb(content)
        except UNREADABLE:
            continue
        decoded += 1
    return decoded, time.process_time() - begun
