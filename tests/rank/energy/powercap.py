"""A tree of RAPL counters like the kernel's, of two processors with memory."""

from pathlib import Path

RANGE_UJ = 262_143_328_850
# The names are those of a server; psys and intel-rapl-mmio are laptops'.
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:1:0": "uncore",
    "intel-rapl:1:1": "dram",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}
COUNTED = ("intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1", "intel-rapl:1:1")


def make(root: Path, zones: dict[str, str] = ZONES) -> Path:
    (root / "intel-rapl").mkdir(parents=True)  # the control type: no zone
    for folder, name in zones.items():
        zone = root / folder
        zone.mkdir()
        (zone / "name").write_text(name + "\n")
        (zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        put(root, folder, 1_000)
    return root


def put(root: Path, zone: str, microjoules: int) -> None:
    """Set a counter; whoever reads it sees the old or the new value, never half of one."""
    counter = root / zone / "energy_uj"
    new = counter.with_name(".new")
    new.write_text(f"{microjoules % RANGE_UJ}\n")
    new.replace(counter)


def advance(root: Path, zone: str, joules: float) -> None:
    before = int((root / zone / "energy_uj").read_text())
    put(root, zone, before + round(joules * 1e6))


def spend(root: Path) -> float:
    """Let every zone use something, the ones that are parts of others too; return what counts."""
    used = {folder: 2.0**number for number, folder in enumerate(ZONES)}
    for zone, joules in used.items():
        advance(root, zone, joules)
    return sum(used[zone] for zone in COUNTED)
