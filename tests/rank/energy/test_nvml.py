"""NVML: the real binding, asked on machines without a GPU and of a driver in its place."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from ddl_tools.rank import energy
from ddl_tools.rank.energy import GpuCounter, GpuPower, Unmeasured
from tests.commands import output
from tests.rank.energy import powercap

UUID = "01234567-89ab-cdef-0123-456789abcdef"


def has_driver() -> bool:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


@pytest.mark.parametrize("source", [GpuCounter, GpuPower])
def test_no_driver_or_no_such_gpu_is_a_reason(source) -> None:
    with pytest.raises(Unmeasured) as caught:
        source(UUID)
    if has_driver():
        assert f"NVML does not know {UUID}" in str(caught.value)
    else:
        assert str(caught.value) == "GPU: no NVIDIA driver (NVML Shared Library Not Found)"


def test_power_is_integrated_by_trapezoids(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([(0.0, 100.0), (1.0, 200.0), (3.0, 50.0)])
    monkeypatch.setattr(energy, "_find", lambda uuid: (None, None))
    monkeypatch.setattr(GpuPower, "_sample", lambda self: next(samples))
    power = GpuPower(UUID)
    assert [power.read(), power.read()] == [150e6, (150 + 250) * 1e6]


ASK = """
import json, os, sys, time
from pathlib import Path
from ddl_tools.rank.energy import GpuCounter, GpuPower, Meter
from ddl_core.config import RunSpec
from ddl_core.strategies.base import Single

def measure(board):
    os.environ["NVML_STAND_IN"] = board
    meter = Meter(Single(RunSpec(device="cpu")), sys.argv[1])
    begin = time.perf_counter()
    meter.start()
    counter = Path(board, "energy_mj")
    if counter.exists():
        counter.write_text("7400500")
    time.sleep(0.3)
    return [meter.method, meter.missing, meter.stop(), time.perf_counter() - begin]

updated_s = GpuCounter.updated_s
GpuCounter.updated_s = GpuPower.updated_s = 0.01
seen = [measure(board) for board in sys.argv[2:]]
GpuCounter.updated_s = updated_s
print(json.dumps([*seen, measure(sys.argv[2])]))
"""
BOARDS = {
    "new": {"energy_mj": 7_000_000, "power_mw": 250_000, "mig": 0},
    "older": {"power_mw": 250_000},
    "divided": {"energy_mj": 7_000_000, "power_mw": 250_000, "mig": 1},
    "mute": {},
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """What the meter says of each of `BOARDS`, through the real binding.

    In a process of its own, where a library made here answers in place of the driver.
    """
    place = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("nvml_stand_in.c")
    if not (compiler := shutil.which("gcc") or shutil.which("cc")):
        pytest.skip("no C compiler")
    library = place / "libnvidia-ml.so.1"
    output(compiler, "-shared", "-fPIC", "-o", library, source)
    for board, files in BOARDS.items():
        (place / board).mkdir()
        for name, value in files.items():
            (place / board / name).write_text(str(value))
    settings = {
        "LD_LIBRARY_PATH": place,
        "NVML_STAND_IN_UUID": f"GPU-{UUID}",
        "DDL_POWERCAP": powercap.make(place / "powercap"),
    }
    boards = [place / board for board in BOARDS]
    told = json.loads(output(sys.executable, "-c", ASK, UUID, *boards, **settings))
    return dict(zip((*BOARDS, "updated rarely"), told, strict=True))


def test_a_counter_in_millijoules_gives_joules(told: dict[str, list]) -> None:
    method = "NVML counter, GPU boards + RAPL, CPU packages and DRAM"
    assert told["new"][:3] == [method, None, 400.5]


def test_a_window_of_few_updates_has_no_energy(told: dict[str, list]) -> None:
    method, missing, joules, _ = told["updated rarely"]
    assert "NVML counter" in method
    assert missing is None
    assert joules is None


def test_power_in_milliwatts_gives_joules_where_there_is_no_counter(told: dict[str, list]) -> None:
    method, missing, joules, seconds = told["older"]
    assert method == "NVML sampled power, GPU boards + RAPL, CPU packages and DRAM"
    assert missing is None
    assert 250 * 0.3 <= joules <= 250 * seconds


def test_a_divided_board_and_one_that_says_nothing_are_reasons(told: dict[str, list]) -> None:
    reason = "GPU: divided by MIG; a slice has no counter of its own"
    assert told["divided"][:3] == [None, reason, None]
    assert told["mute"][:3] == [None, "GPU: no power reading (Not Supported)", None]
