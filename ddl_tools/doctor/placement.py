"""A judge of where the ranks of a probe were: cores, devices, memory to share, limits, caches."""

from collections import defaultdict
from itertools import combinations

from ddl_tools.doctor.finding import Finding, State
from ddl_tools.records.probe import Answer, ProbeRecord

MOST_TEXTS = 4  # in one finding
BIND = "cpu_bind = 'cores' in the site's file (srun), with cpus_per_rank cores for each"
FEW_FILES = 1024


def judge(record: ProbeRecord) -> list[Finding]:
    """Return the findings about each host's ranks together."""
    hosts = _by_host(record)
    return [
        _cores(record, hosts),
        _loader_cores(record),
        _load(record, hosts),
        _devices(record, hosts),
        _shared_memory(record, hosts),
        _open_files(record),
        _caches(record),
    ]


def _by_host(record: ProbeRecord) -> dict[str, list[Answer]]:
    hosts: dict[str, list[Answer]] = defaultdict(list)
    for answer in record.answers:
        hosts[answer.host].append(answer)
    return hosts


def span(cores: list[int]) -> str:
    """Return e.g. ``"0-3,8"``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in parts)


def _cores(record: ProbeRecord, hosts: dict[str, list[Answer]]) -> Finding:
    """Look for cores that two ranks share.

    Ranks that may all use the same ones are merely not bound, as on a laptop, as long as there is
    one for each; otherwise somebody bound them wrongly.
    """
    granted = record.cores_per_rank
    if granted and (poor := [one for one in record.answers if len(one.cores) < granted]):
        one = poor[0]
        detail = f"rank {one.rank} may use {len(one.cores)} core(s) of the {granted} asked for"
        remedy = "cpu_bind in the site's file; or SLURM gives fewer: cpus_per_rank"
        return Finding("cores of ranks", "bad", f"{detail} ({span(one.cores)})", remedy)
    pinned: list[str] = []
    loose: list[str] = []
    for host, answers in hosts.items():
        shared = [pair for pair in combinations(answers, 2) if _common(*pair)]
        same = {tuple(one.cores) for one in answers}
        if shared and len(same) == 1 and len(answers[0].cores) >= len(answers):
            ranks = span([one.rank for one in answers])
            loose.append(f"ranks {ranks} share cores {span(answers[0].cores)} of {host}")
            continue
        for first, second in shared:
            cores = span(_common(first, second))
            pinned.append(f"ranks {first.rank} and {second.rank} share cores {cores} of {host}")
    if pinned:
        return Finding("cores of ranks", "bad", _some(pinned), BIND)
    if loose:
        return Finding(
            "cores of ranks", "warn", f"{_some(loose)}: not bound, the system moves them", BIND
        )
    each = sorted({len(one.cores) for one in record.answers})
    return Finding("cores of ranks", "ok", f"{span(each)} for each rank, none shared")


def _common(first: Answer, second: Answer) -> list[int]:
    return sorted(set(first.cores) & set(second.cores))


def _some(texts: list[str]) -> str:
    rest = len(texts) - MOST_TEXTS
    return "; ".join(texts[:MOST_TEXTS]) + (f"; {rest} more" if rest > 0 else "")


def _loader_cores(record: ProbeRecord) -> Finding:
    """Look for loader processes that inherited fewer cores, from a parent that a library bound."""
    for one in record.answers:
        reached = {core for cores in one.loader_cores for core in cores}
        if one.loader_cores and reached < set(one.cores):
            detail = f"those of rank {one.rank} may use cores {span(sorted(reached))} of its "
            remedy = "unset OMP_PROC_BIND, KMP_AFFINITY and GOMP_CPU_AFFINITY in the environment"
            return Finding("loader processes", "bad", detail + span(one.cores), remedy)
    number = record.spec.loader_workers
    text = f"{number} for each rank, on its cores" if number else "none: the rank loads by itself"
    return Finding("loader processes", "ok", text)


def _load(record: ProbeRecord, hosts: dict[str, list[Answer]]) -> Finding:
    """Count busy threads against cores: what is above waits, and the training with it."""
    own = record.spec.cpu_threads + record.spec.loader_workers
    for host, answers in hosts.items():
        cores = len({core for one in answers for core in one.cores})
        busy = own * len(answers)
        if busy > cores:
            detail = (
                f"{busy} busy threads on {cores} cores of {host}: {len(answers)} rank(s) with "
                f"{record.spec.loader_workers} loader processes each"
            )
            remedy = "fewer loader_workers in the study (--loader-workers here), more cpus_per_rank"
            return Finding("busy threads", "warn", detail, remedy)
    return Finding("busy threads", "ok", f"{own} for each rank, and a core for each")


def _devices(record: ProbeRecord, hosts: dict[str, list[Answer]]) -> Finding:
    for host, answers in hosts.items():
        for first, second in combinations(answers, 2):
            if first.device_id and first.device_id == second.device_id:
                shown = first.visible or "nothing hides devices"
                return Finding(
                    "devices",
                    "bad",
                    f"ranks {first.rank} and {second.rank} both compute on "
                    f"{first.device_id} of {host} ({shown})",
                    "visible_devices, gpu_bind in the site's file; fewer ranks than GPUs",
                )
    kinds = {str(one.device.get("accelerator") or "CPU") for one in record.answers}
    each = "; a GPU for each rank" if all(one.device_id for one in record.answers) else ""
    return Finding("devices", "ok", ", ".join(sorted(kinds)) + each)


def _shared_memory(record: ProbeRecord, hosts: dict[str, list[Answer]]) -> Finding:
    """Loader processes hand batches over in /dev/shm; where it is full they die of a bus error."""
    spec = record.spec
    batch = spec.local_batch_size * 3 * spec.image_size**2 * 4  # float32
    for host, answers in hosts.items():
        need = len(answers) * spec.loader_workers * spec.loader_prefetch * batch
        free = min(one.shared_memory_bytes for one in answers)
        if need > free:
            detail = f"{free / 1e9:.1f} GB free on {host}, loaders may hold {need / 1e9:.1f} GB"
            remedy = "a larger /dev/shm (containers: --shm-size), fewer loader_workers or prefetch"
            return Finding("/dev/shm", "bad", detail, remedy)
    free = min(one.shared_memory_bytes for one in record.answers)
    return Finding("/dev/shm", "ok", f"{free / 1e9:.1f} GB free")


def _open_files(record: ProbeRecord) -> Finding:
    """Compare the limit with shards: their reader keeps a quarter of it open, torch needs some."""
    soft, hard = min(one.open_files for one in record.answers)
    if soft < 0:
        return Finding("open files", "ok", "no limit")
    most = f"ulimit -n {hard}" if hard > 0 else "ulimit -n unlimited"
    remedy = f"setup = ['{most}'] in the site's file"
    if soft == hard:  # ranks raise their own to it
        remedy = "ask who runs the machine for a higher hard limit"
    shards = max((one.reading.shards or 0 for one in record.answers if one.reading), default=0)
    if shards > soft // 4:
        detail = f"limit {soft}: {soft // 4} of {shards} shards stay open, others open anew"
        return Finding("open files", "warn", detail, remedy)
    state: State = "warn" if soft < FEW_FILES else "ok"
    return Finding("open files", state, f"limit {soft}", remedy)


def _caches(record: ProbeRecord) -> Finding:
    for one in record.answers:
        for folder in one.caches:
            if folder.error:
                detail = f"{folder.variable} = {folder.path} on {one.host}: {folder.error}"
                remedy = f"caches in the site's file, or another {folder.variable}"
                return Finding("caches of ranks", "bad", detail, remedy)
    kinds = sorted({folder.file_system for one in record.answers for folder in one.caches})
    text = f"writable, on {', '.join(kinds)}" if kinds else "none set: in the home folder"
    return Finding("caches of ranks", "ok", text)
