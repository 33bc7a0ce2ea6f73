"""Judge what the ranks of a probe found: their cores, devices and limits, the network, the data."""

import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from ddl_core.files import some
from ddl_tools.doctor.finding import Finding, State
from ddl_tools.names import plural
from ddl_tools.records.probe import Answer, Collective, Interface, ProbeRecord, Reading, size_text

FEW_FILES = 1024
LEAST_SHARE = 0.5  # of a link's rate: NCCL and Gloo reach more where nothing is wrong
LEAST_CLOCK = 0.9  # of the fastest GPU: training waits for the slowest
LISTED = 100_000  # ranks; a damaged record may claim any number
NCCL = "NCCL_SOCKET_IFNAME"
BINDING = "cpu_bind = 'cores' in the site's file (srun), with cpus_per_rank cores for each"
NOT_SO_FAR = "the ranks did not come so far"
INTERFACES = "gloo_interface, nccl_interface in the site's file"

Verdict = tuple[State, str] | tuple[State, str, dict[str, str]]
"""State, detail, and words that the remedy names."""


class Judgement(NamedTuple):
    """What one line of the report says, if `predicate` returns a verdict."""

    subject: str
    predicate: Callable[[ProbeRecord], Verdict | None]
    remedy: str  # names words of the verdict in braces; not used where all is well


def judge(record: ProbeRecord, directory: Path) -> list[Finding]:
    """Return the findings of a probe; of one that failed, those that its ranks came to."""
    findings = [Finding("ranks", *_answers(record, directory))]
    for one in JUDGEMENTS if record.answers else ():
        if one.subject == findings[-1].subject:
            continue  # an earlier judgement had something to say
        if verdict := one.predicate(record):
            state, detail, *words = verdict
            remedy = "" if state == "ok" else one.remedy.format(**dict(*words))
            findings.append(Finding(one.subject, state, detail, remedy))
    return findings


def _answers(record: ProbeRecord, directory: Path) -> tuple[State, str] | tuple[State, str, str]:
    if record.status == "completed":
        hosts = len({answer.host for answer in record.answers})
        return "ok", f"{record.spec.world_size} on {plural(hosts, 'host')}, all answered"
    if record.error is None:
        job = f"job {record.job_id} has not ended" if record.job_id else "has not ended"
        return "unknown", job, f"later: ddl doctor --show {directory}"
    rank = "" if record.error.rank is None else f"rank {record.error.rank}: "
    text = "\n".join([f"{rank}{record.error.message}", *_steps(record)])
    return "bad", text, f"logs in {directory / 'logs'}"


def _steps(record: ProbeRecord) -> list[str]:
    """Return a line on the ranks that never began, and on each step at which others ended."""
    last = {answer.rank: answer.step for answer in record.answers}
    ranks = defaultdict(list)
    for rank in range(min(record.spec.world_size, LISTED)):
        ranks[last.get(rank, "no step at all")].append(rank)
    return [
        f"{'rank' if len(at) == 1 else 'ranks'} {span(at)} at {step!r}"
        for step, at in ranks.items()
        if step != "done"
    ]


def span(numbers: Iterable[int]) -> str:
    """Return e.g. ``"0-3,8"``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in parts)


def _hosts(record: ProbeRecord) -> dict[str, list[Answer]]:
    hosts = defaultdict(list)
    for answer in record.answers:
        hosts[answer.host].append(answer)
    return hosts


def _container(record: ProbeRecord) -> Verdict | None:
    """Name the image that has started, its Python and torch, and the versions that differ."""
    inside: dict[str, Any] = dict(record.provenance or {})
    if "container" not in inside:
        return None
    torch = inside.get("packages", {}).get("torch")
    detail = f"{inside['container']}, with Python {inside.get('python')}, torch {torch}"
    if inside.get("python") != (outside := platform.python_version()):
        detail += f"; outside Python {outside}"
    if others := inside.get("not_pinned"):
        return "warn", f"{detail}; requirements/ has other versions: {some(others, ', ')}"
    return "ok", detail


def _missing_cores(record: ProbeRecord) -> Verdict | None:
    """Look for a rank that may use fewer cores than the site grants it."""
    granted = record.cores_per_rank or 0
    for one in record.answers:
        if len(one.cores) < granted:
            cores = plural(len(one.cores), "core")
            detail = f"rank {one.rank} may use {cores} of the {granted} asked for"
            return "bad", f"{detail} ({span(one.cores)})"
    return None


def _shared_cores(record: ProbeRecord) -> Verdict:
    """Look for cores that two ranks share.

    Ranks that may all use the same cores, of which there is one for each, are not bound, as on a
    laptop; all other ranks that share cores are bound wrongly.
    """
    bound, loose = [], []
    for host, answers in _hosts(record).items():
        cores = answers[0].cores
        if 1 < len(answers) <= len(cores) and all(one.cores == cores for one in answers):
            ranks = span(one.rank for one in answers)
            loose.append(f"ranks {ranks} share cores {span(cores)} of {host}")
            continue
        for first, second in combinations(answers, 2):
            if shared := set(first.cores) & set(second.cores):
                ranks = f"{first.rank} and {second.rank}"
                bound.append(f"ranks {ranks} share cores {span(shared)} of {host}")
    if bound:
        return "bad", some(bound, "; ")
    if loose:
        return "warn", f"{some(loose, '; ')}: not bound, the system moves them"
    each = span({len(one.cores) for one in record.answers})
    return "ok", f"{each} for each rank, none shared"


def _loader_processes(record: ProbeRecord) -> Verdict:
    """Look for loader processes that inherited fewer cores, from a parent that a library bound."""
    for one in record.answers:
        reached = {core for cores in one.loader_cores for core in cores}
        if one.loader_cores and reached < set(one.cores):
            cores = f"cores {span(reached)} of its {span(one.cores)}"
            return "bad", f"those of rank {one.rank} may use {cores}"
    number = record.spec.loader_workers
    return (
        "ok",
        f"{number} for each rank, on its cores" if number else "none: the rank itself loads",
    )


def _busy_threads(record: ProbeRecord) -> Verdict:
    """Compare busy threads with cores: threads without a core wait, and the training with them."""
    each = record.spec.cpu_threads + record.spec.loader_workers
    for host, answers in _hosts(record).items():
        cores = len({core for one in answers for core in one.cores})
        if (busy := each * len(answers)) > cores:
            detail = (
                f"{busy} busy threads on {plural(cores, 'core')} of {host}: "
                f"{plural(len(answers), 'rank')} with "
                f"{plural(record.spec.loader_workers, 'loader process')} each"
            )
            return "warn", detail
    return "ok", f"{each} for each rank, and a core for each"


def _devices(record: ProbeRecord) -> Verdict:
    for host, answers in _hosts(record).items():
        for one, other in combinations(answers, 2):
            if one.device_id and one.device_id == other.device_id:
                detail = (
                    f"ranks {one.rank} and {other.rank} both compute on {one.device_id} of {host} "
                    f"({one.visible or 'nothing hides devices'})"
                )
                return "bad", detail
    kinds = {str(one.device.get("accelerator") or "CPU") for one in record.answers}
    each = "; a GPU for each rank" if all(one.device_id for one in record.answers) else ""
    return "ok", ", ".join(sorted(kinds)) + each


def _shared_memory(record: ProbeRecord) -> Verdict:
    """Compare /dev/shm with the batches that loader processes may hold in it."""
    spec = record.spec
    batch = spec.local_batch_size * 3 * spec.image_size**2 * 4  # float32
    for host, answers in _hosts(record).items():
        need = len(answers) * spec.loader_workers * spec.loader_prefetch * batch
        free = min(one.shared_memory_bytes for one in answers)
        if need > free:
            detail = f"{free / 1e9:.1f} GB free on {host}, loaders may hold {need / 1e9:.1f} GB"
            return "bad", detail
    return "ok", f"{min(one.shared_memory_bytes for one in record.answers) / 1e9:.1f} GB free"


def _hard_limit(record: ProbeRecord) -> Verdict | None:
    """Judge open files where ranks have raised their limit as far as they can."""
    soft, hard = min(one.open_files for one in record.answers)
    return _open_files(record) if soft == hard else None


def _open_files(record: ProbeRecord) -> Verdict:
    """Compare the limit with shards: their reader keeps a quarter of it open, torch needs some."""
    soft, hard = min(one.open_files for one in record.answers)
    if soft < 0:
        return "ok", "no limit"
    words = {"most": str(hard) if hard > 0 else "unlimited"}
    shards = max((one.reading.shards or 0 for one in record.answers if one.reading), default=0)
    if shards > soft // 4:
        detail = f"limit {soft}: {soft // 4} of {shards} shards stay open, others open anew"
        return "warn", detail, words
    return "warn" if soft < FEW_FILES else "ok", f"limit {soft}", words


def _caches(record: ProbeRecord) -> Verdict:
    folders = [(one.host, folder) for one in record.answers for folder in one.caches]
    for host, folder in folders:
        if folder.error:
            detail = f"{folder.variable} = {folder.path} on {host}: {folder.error}"
            return "bad", detail, {"variable": folder.variable}
    kinds = ", ".join(sorted({folder.file_system for _, folder in folders}))
    return "ok", f"writable, on {kinds}" if kinds else "none set: in the home folder"


def _interfaces(record: ProbeRecord) -> Verdict:
    """Look for interfaces that a variable names and a host does not have."""
    for one in record.answers:
        there = [interface.name for interface in one.interfaces]
        for variable, value in one.wanted_interfaces.items():
            if missing := _missing(variable, value, there):
                detail = f"{variable} = {value!r}: {one.host} has no {missing!r}"
                return "bad", detail, {"there": ", ".join(there)}
    named = sorted({text for one in record.answers for text in one.wanted_interfaces.values()})
    return "ok", f"named: {', '.join(named)}" if named else "none named"


def _missing(variable: str, value: str, there: list[str]) -> str | None:
    """Return a name that stands for no interface; NCCL's are prefixes, after ``=`` whole names."""
    if variable == NCCL and value.startswith("^"):
        return None  # all but these
    exact = variable != NCCL or value.startswith("=")
    for name in value.removeprefix("=").split(","):
        if not any(one == name if exact else one.startswith(name) for one in there):
            return name
    return None


def _no_connections(record: ProbeRecord) -> Verdict | None:
    if any(one.used_interfaces for one in record.answers):
        return None
    return "ok" if record.spec.world_size == 1 else "unknown", "none"


def _connections(record: ProbeRecord) -> Verdict:
    """Name the interfaces of the ranks' connections; look for a faster one."""
    used = sorted({name for one in record.answers for name in one.used_interfaces})
    speeds: dict[str, int] = {}
    for one in record.answers:
        own = {interface.name: _speed(interface) for interface in one.interfaces}
        speeds |= own
        best = max((own.get(name, 0) for name in one.used_interfaces), default=0)
        faster = [i.name for i in one.interfaces if best and i.addresses and _speed(i) > best]
        if faster and "lo" not in one.used_interfaces:
            detail = f"{one.host} used {', '.join(used)} ({best} Mbit/s), slower than {faster[0]}"
            return "warn", detail
    shown = (f"{name} ({speeds[name]} Mbit/s)" if speeds.get(name) else name for name in used)
    return "ok", f"over {', '.join(shown)}"


def _speed(interface: Interface) -> int:
    return interface.speed_mbit_per_s or 0


def _wrong_sum(record: ProbeRecord) -> Verdict | None:
    wrong = [one.rank for one in record.answers if one.sum_is_right is False]
    return ("bad", f"the sum over ranks is wrong on ranks {span(wrong)}") if wrong else None


def _no_all_reduce(record: ProbeRecord) -> Verdict | None:
    if record.answers[0].all_reduce:
        return None
    return "unknown", "one rank" if record.spec.world_size == 1 else NOT_SO_FAR


def _timed(found: list[Collective], ranks: int, passes: int = 2) -> str:
    small, large = found[0], found[-1]
    return (
        f"{small.seconds * 1e6:.0f} us for {size_text(small.bytes)}, bus bandwidth "
        f"{large.bus_bytes_per_s(ranks, passes) / 1e9:.2f} GB/s at {size_text(large.bytes)}"
    )


def _all_gather(record: ProbeRecord) -> Verdict | None:
    found = record.answers[0].all_gather
    return ("ok", _timed(found, record.spec.world_size, passes=1)) if found else None


def _reduce_scatter(record: ProbeRecord) -> Verdict | None:
    found = record.answers[0].reduce_scatter
    return ("ok", _timed(found, record.spec.world_size, passes=1)) if found else None


def _all_reduce(record: ProbeRecord) -> Verdict:
    first = record.answers[0]
    detail = _timed(first.all_reduce, record.spec.world_size)
    if not first.omitted_bytes:
        return "ok", detail
    size, limit = size_text(first.omitted_bytes[0]), f"{record.collective_limit_s:.0f} s"
    return "warn", f"{detail}; {size} and more left out: over {limit}"


def _bandwidth(record: ProbeRecord) -> Verdict | None:
    """Compare the bus bandwidth of the largest all-reduce with the rate of the slowest link."""
    found = record.answers[0].all_reduce
    expected = _between_hosts(record) if len(_hosts(record)) > 1 else _within_host(record)
    if not (found and expected):
        return None
    rate, of = expected
    reached = found[-1].bus_bytes_per_s(record.spec.world_size)
    detail = f"{reached / 1e9:.3g} of the {rate / 1e9:.3g} GB/s of {of} ({reached / rate:.0%})"
    return "ok" if reached >= LEAST_SHARE * rate else "warn", detail


def _between_hosts(record: ProbeRecord) -> tuple[float, str] | None:
    """Return the least bytes per second that a host can send, and by what; None: not known."""
    rates = {host: _host_rate(answers) for host, answers in _hosts(record).items()}
    known = [rate for rate in rates.values() if rate]
    return min(known) if len(known) == len(rates) else None


def _host_rate(answers: list[Answer]) -> tuple[float, str] | None:
    first = answers[0]
    if first.nccl and first.ports and not _by_sockets(first):
        names = ", ".join(port.name for port in first.ports)
        return sum(port.gbit_per_s for port in first.ports) * 1e9 / 8, names
    speeds = {one.name: _speed(one) for one in first.interfaces}
    used = {name for one in answers for name in one.used_interfaces}
    best = max(used, key=lambda name: speeds.get(name, 0), default="")
    return (speeds[best] * 1e6 / 8, best) if speeds.get(best) else None


def _within_host(record: ProbeRecord) -> tuple[float, str] | None:
    links = [one.gpu.nvlink_bytes_per_s if one.gpu else None for one in record.answers]
    rates = [rate for rate in links if rate]
    return (min(rates), "each GPU's NVLinks") if rates and len(rates) == len(links) else None


def _by_sockets(one: Answer) -> bool:
    nccl = one.nccl
    return nccl is not None and (
        nccl.network == "Socket" or any(way.startswith("NET/Socket") for way in nccl.channels)
    )


def _nccl(record: ProbeRecord) -> Verdict | None:
    """Say what NCCL has chosen; look for sockets beside InfiniBand, and for copies by the host."""
    known = [one for one in record.answers if one.nccl]
    if not known:
        return None
    ways = Counter[str]()
    for one in known:
        ways.update(one.nccl.channels if one.nccl else {})
    networks = sorted({one.nccl.network for one in known if one.nccl and one.nccl.network})
    shown = ", ".join(f"{number} channels by {way}" for way, number in ways.most_common())
    detail = "; ".join(filter(None, [f"network {', '.join(networks)}" if networks else "", shown]))
    several = len(_hosts(record)) > 1
    for one in known:
        if several and _by_sockets(one) and one.ports:
            return "warn", f"{detail}: sockets, although {one.host} has {one.ports[0].name}"
    through_host = [way for way in ways if way.startswith("NET/IB") and "GDR" not in way]
    if several and through_host:
        return "warn", f"{detail}: without GPUDirect RDMA, data are copied through the host"
    return "ok", detail


def _gpu_memory(record: ProbeRecord) -> Verdict | None:
    """Look for errors that a GPU's memory could not correct, and rows that wait for a reset."""
    for one in record.answers:
        if one.gpu and (one.gpu.uncorrected_ecc or one.gpu.pending_rows):
            what = (
                f"{one.gpu.uncorrected_ecc} errors of its memory were not corrected"
                if one.gpu.uncorrected_ecc
                else "rows of its memory are to be replaced at its next reset"
            )
            return "bad", f"{one.device_id} of {one.host} (rank {one.rank}): {what}"
    return None


def _clocks(record: ProbeRecord) -> Verdict | None:
    """Compare the clocks of the GPUs, each at work, with one another and with their highest."""
    clocks = {
        one.rank: (one.gpu.clock_mhz, one.gpu.clock_max_mhz or 0)
        for one in record.answers
        if one.gpu and one.gpu.clock_mhz
    }
    if not clocks:
        return None
    slow, fast = min(clocks, key=lambda rank: clocks[rank]), max(clocks.values())[0]
    clock, most = clocks[slow]
    detail = f"{clock} to {fast} MHz at work, at most {most}"
    if clock < LEAST_CLOCK * fast:
        host = next(one.host for one in record.answers if one.rank == slow)
        return "warn", f"{detail}: rank {slow} on {host} is the slowest"
    return "ok", f"{detail}; no error of memory that was not corrected"


def _unreadable(record: ProbeRecord) -> Verdict | None:
    for one in record.answers:
        if one.reading_error:
            return "bad", f"rank {one.rank} on {one.host}: {one.reading_error.splitlines()[0]}"
    return None


def _not_read(record: ProbeRecord) -> Verdict | None:
    if any(one.reading for one in record.answers):
        return None
    return "unknown", "no data named" if record.data_dir is None else NOT_SO_FAR


def _reading(record: ProbeRecord) -> Verdict:
    """Compare reading with the most that loaders could use: decoding alone on all their cores."""
    found = [(one.reading, len(one.cores)) for one in record.answers if one.reading]
    cold = sum(reading.images / reading.cold_s for reading, _ in found)
    warm = sum(reading.images / reading.warm_s for reading, _ in found)
    amount = sum(reading.bytes / reading.cold_s for reading, _ in found)
    need = sum(_decodable(reading, cores) for reading, cores in found)
    detail = (
        f"{cold:.0f} images/s ({amount / 1e6:.0f} MB/s), again {warm:.0f}; the loaders' cores "
        f"decode at most {need:.0f} images/s"
    )
    if cold < need:
        return "warn", f"{detail}: reading may be the limit"
    return "ok", detail


def _decodable(reading: Reading, cores: int) -> float:
    """Return how many images per second the cores of a rank's loader could decode."""
    one_core = reading.decoded / reading.decode_s if reading.decode_s else 0
    return one_core * min(reading.threads, cores)


# Of a subject, the first judgement that returns a verdict counts.
JUDGEMENTS = [
    Judgement(
        "container",
        _container,
        "compare runs of one image alone, or make another: make image-files",
    ),
    Judgement(
        "cores of ranks",
        _missing_cores,
        "cpu_bind in the site's file; or SLURM gives fewer: cpus_per_rank",
    ),
    Judgement("cores of ranks", _shared_cores, BINDING),
    Judgement(
        "loader processes",
        _loader_processes,
        "unset OMP_PROC_BIND, KMP_AFFINITY and GOMP_CPU_AFFINITY in the environment",
    ),
    Judgement(
        "busy threads",
        _busy_threads,
        "fewer loader_workers in the study (--loader-workers here), more cpus_per_rank",
    ),
    Judgement(
        "devices", _devices, "visible_devices, gpu_bind in the site's file; fewer ranks than GPUs"
    ),
    Judgement(
        "/dev/shm",
        _shared_memory,
        "a larger /dev/shm (containers: --shm-size), fewer loader_workers or prefetch",
    ),
    Judgement("open files", _hard_limit, "ask who runs the machine for a higher hard limit"),
    Judgement("open files", _open_files, "setup = ['ulimit -n {most}'] in the site's file"),
    Judgement("caches of ranks", _caches, "caches in the site's file, or another {variable}"),
    Judgement("interface", _interfaces, f"{INTERFACES}; there are: {{there}}"),
    Judgement("connections", _no_connections, ""),
    Judgement("connections", _connections, INTERFACES),
    Judgement("all-reduce", _wrong_sum, "another version of NCCL, or of its network plug-in"),
    Judgement("all-reduce", _no_all_reduce, "--ranks or --nodes 2"),
    Judgement("all-reduce", _all_reduce, f"a faster interface: {INTERFACES}"),
    Judgement("all-gather", _all_gather, ""),
    Judgement("reduce-scatter", _reduce_scatter, ""),
    Judgement(
        "bandwidth",
        _bandwidth,
        "look at connections and nccl above; other traffic, or one of several ports in use",
    ),
    Judgement(
        "nccl",
        _nccl,
        "the centre's NCCL and its network plug-in; NCCL_IB_DISABLE, NCCL_NET_GDR_LEVEL, "
        "NCCL_IB_HCA of the site's file",
    ),
    Judgement("gpu state", _gpu_memory, "ask who runs the machine to reset or replace it"),
    Judgement("gpu state", _clocks, "power limit, heat or another program (nvidia-smi -q)"),
    Judgement("reading", _unreadable, "--data DIR; a folder that all nodes see"),
    Judgement("reading", _not_read, "--data DIR"),
    Judgement(
        "reading",
        _reading,
        "TFRecord (ddl data convert), a faster file system; look closer: ddl bench loader",
    ),
]
