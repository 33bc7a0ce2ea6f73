"""Energy of a machine's processors and their memory, from RAPL counters in sysfs.

A package is a whole processor: its zones ``core`` and ``uncore`` are parts of it and are left out.
``dram`` lies outside the package and is added. ``psys`` is a whole laptop, packages included, and
is left out. The files: Documentation/ABI/testing/sysfs-class-powercap of the Linux kernel.
"""

import os
from pathlib import Path

from ddl_core.rank.energy.source import Every, Unmeasured

POWERCAP = "/sys/class/powercap"
# A counter of 262 kJ wraps around within 20 min at 200 W: read it before it can do so twice.
EVERY_S = 60.0
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Rapl:
    """The packages of this machine, and their memory where it has a counter.

    Parameters
    ----------
    root : Path or None
        Folder of the zones; None: ``DDL_POWERCAP``, else the kernel's. Containers often hide the
        kernel's, and may mount it elsewhere.
    every_s : float
        Seconds between readings within a window.

    Raises
    ------
    Unmeasured
        If there are no counters, or this user may not read them.
    """

    def __init__(self, root: Path | None = None, every_s: float = EVERY_S) -> None:
        root = root or Path(os.environ.get("DDL_POWERCAP") or POWERCAP)
        zones = _counted(root)
        self._counters = [zone / "energy_uj" for zone in zones]
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._every_s = every_s
        self._every: Every | None = None
        self._last = self._readings()
        self._total_uj = 0
        memory = any(_name(zone) == "dram" for zone in zones)
        self.method = "RAPL, CPU packages and DRAM" if memory else "RAPL, CPU packages"
        # Not the name of the host: containers of one machine share its packages.
        self.place = _text(BOOT)

    def start(self) -> None:
        """Begin to count."""
        self._last, self._total_uj = self._readings(), 0
        self._every = Every(self._every_s, self.advance)

    def advance(self) -> None:
        """Count what was used since the last reading, through one wrap-around of a counter."""
        now = self._readings()
        for before, after, span in zip(self._last, now, self._ranges, strict=True):
            self._total_uj += after - before + (span if after < before else 0)
        self._last = now

    def stop(self) -> float:
        """Return joules since `start`."""
        self.close()
        self.advance()
        return self._total_uj / 1e6

    def close(self) -> None:
        """End the thread."""
        every, self._every = self._every, None
        if every:
            every.stop()

    def _readings(self) -> list[int]:
        return [_number(counter) for counter in self._counters]


def _counted(root: Path) -> list[Path]:
    """Return the zones that together are the machine, none within another."""
    zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _is_counted(_name(zone))]
    if not any(_name(zone) != "dram" for zone in zones):
        raise Unmeasured(f"CPU: no RAPL counters in {root} (none, or hidden by a container)")
    return zones


def _is_counted(name: str) -> bool:
    return name.startswith("package-") or name == "dram"


def _name(zone: Path) -> str:
    return _text(zone / "name")


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdigit():
        raise Unmeasured(f"CPU: {path} holds {text[:40]!r}, not a number")
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except PermissionError:
        raise Unmeasured(
            f"CPU: this user may not read {path}; an administrator can allow it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Unmeasured(f"CPU: cannot read {path}: {error}") from None
