"""A judge of what passed between the ranks of a probe, and between them and the data."""

from ddl_tools.doctor.finding import Finding
from ddl_tools.doctor.placement import span
from ddl_tools.records.probe import Answer, Interface, ProbeRecord, size_text

NCCL = "NCCL_SOCKET_IFNAME"
KNOBS = "gloo_interface, nccl_interface in the site's file"


def judge(record: ProbeRecord) -> list[Finding]:
    """Return the findings about network and data path."""
    return [_wanted(record), _used(record), _all_reduce(record), _reading(record)]


def _wanted(record: ProbeRecord) -> Finding:
    """Look for interfaces that a variable names and a host does not have."""
    for one in record.answers:
        there = [interface.name for interface in one.interfaces]
        for variable, value in one.wanted_interfaces.items():
            if missing := _missing(variable, value, there):
                detail = f"{variable} = {value!r}: {one.host} has no {missing!r}"
                remedy = f"{KNOBS}; there are: {', '.join(there)}"
                return Finding("interface", "bad", detail, remedy)
    named = sorted({text for one in record.answers for text in one.wanted_interfaces.values()})
    return Finding("interface", "ok", f"named: {', '.join(named)}" if named else "none named")


def _missing(variable: str, value: str, there: list[str]) -> str | None:
    """Return a name that stands for no interface; NCCL's are prefixes, after ``=`` whole names."""
    if variable == NCCL and value.startswith("^"):
        return None  # all but these
    exact = variable != NCCL or value.startswith("=")
    for name in value.removeprefix("=").split(","):
        if not any(one == name if exact else one.startswith(name) for one in there):
            return name
    return None


def _used(record: ProbeRecord) -> Finding:
    """Say what the ranks' connections really went over, and whether there is a faster way."""
    used = sorted({name for one in record.answers for name in one.used_interfaces})
    if not used:
        return Finding("connections", "ok" if record.spec.world_size == 1 else "unknown", "none")
    for one in record.answers:
        by_name = {interface.name: interface for interface in one.interfaces}
        best = max((_speed(by_name.get(name)) for name in one.used_interfaces), default=0)
        faster = [
            interface.name
            for interface in one.interfaces
            if best and _speed(interface) > best and interface.addresses
        ]
        if faster and "lo" not in one.used_interfaces:
            detail = f"{one.host} used {', '.join(used)} ({best} Mbit/s), slower than {faster[0]}"
            return Finding("connections", "warn", detail, KNOBS)
    return Finding("connections", "ok", f"over {', '.join(_named(record, used))}")


def _speed(interface: Interface | None) -> int:
    return (interface.speed_mbit_per_s or 0) if interface else 0


def _named(record: ProbeRecord, used: list[str]) -> list[str]:
    known = {one.name: _speed(one) for answer in record.answers for one in answer.interfaces}
    return [f"{name} ({known[name]} Mbit/s)" if known.get(name) else name for name in used]


def _all_reduce(record: ProbeRecord) -> Finding:
    wrong = [one.rank for one in record.answers if one.sum_is_right is False]
    if wrong:
        detail = f"the sum over ranks is wrong on ranks {span(wrong)}"
        remedy = "another version of NCCL, or of its network plug-in"
        return Finding("all-reduce", "bad", detail, remedy)
    sizes = record.answers[0].all_reduce
    if not sizes:
        reason = "one rank" if record.spec.world_size == 1 else "the ranks did not come so far"
        return Finding("all-reduce", "unknown", reason, "--ranks or --nodes 2")
    first, last = sizes[0], sizes[-1]
    detail = (
        f"{first.seconds * 1e6:.0f} us for {size_text(first.bytes)}, bus bandwidth "
        f"{last.bus_bytes_per_s(record.spec.world_size) / 1e9:.2f} GB/s at {size_text(last.bytes)}"
    )
    if omitted := record.answers[0].omitted_bytes:
        limit = f"over {record.collective_limit_s:.0f} s"
        detail += f"; {size_text(omitted[0])} and more left out: {limit}"
        return Finding("all-reduce", "warn", detail, f"a faster interface: {KNOBS}")
    return Finding("all-reduce", "ok", detail)


def _reading(record: ProbeRecord) -> Finding:
    """Compare reading with what loaders could use at most: decoding alone on all their cores."""
    if wrong := next((one for one in record.answers if one.reading_error), None):
        text = f"rank {wrong.rank} on {wrong.host}: {(wrong.reading_error or '').splitlines()[0]}"
        return Finding("reading", "bad", text, "--data DIR; a folder that all nodes see")
    found = [one for one in record.answers if one.reading]
    if not found:
        detail = "no data named" if record.data_dir is None else "the ranks did not come so far"
        return Finding("reading", "unknown", detail, "--data DIR")
    cold, warm, amount = (sum(map(rate, found)) for rate in (_cold, _warm, _cold_bytes))
    need = sum(map(_decodable, found))
    detail = (
        f"{cold:.0f} images/s ({amount / 1e6:.0f} MB/s), again {warm:.0f}; the loaders' cores "
        f"decode at most {need:.0f} images/s"
    )
    if cold < need:
        remedy = "TFRecord (ddl data convert), a faster file system; look closer: ddl bench loader"
        return Finding("reading", "warn", f"{detail}: reading may be the limit", remedy)
    return Finding("reading", "ok", detail)


def _cold(one: Answer) -> float:
    return one.reading.images / one.reading.cold_s if one.reading else 0


def _warm(one: Answer) -> float:
    return one.reading.images / one.reading.warm_s if one.reading else 0


def _cold_bytes(one: Answer) -> float:
    return one.reading.bytes / one.reading.cold_s if one.reading else 0


def _decodable(one: Answer) -> float:
    """Return how many images per second the cores of a rank's loader could decode."""
    if not one.reading or not one.reading.decode_s:
        return 0
    return one.reading.decoded / one.reading.decode_s * min(one.reading.threads, len(one.cores))
