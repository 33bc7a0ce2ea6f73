"""Memory of GPUs, as the driver's tool tells it."""

import pytest

from ddl_tools import gpus

ANSWERS = {
    "uuid": ["GPU-a", "GPU-b"],
    "memory.free": ["1000", "[N/A]"],
    "gpu_uuid,pid,used_memory": [
        "GPU-a, 7, 100",
        "GPU-b, 7, 20",
        "GPU-b, 8, 3",
        "GPU-b, 9, [N/A]",
        "GPU-b, 10, 4000",
        "GPU-c, 7, 5",
        "No running processes found",
    ],
}


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ask", lambda fields, form, of="gpu": ANSWERS[fields])


def test_free_memory_is_unknown_where_the_driver_has_no_number() -> None:
    assert gpus.free_bytes() == [1000 * gpus.MIB, None]


@pytest.mark.parametrize(
    ("pids", "held"),
    [
        ([7, 8], [100 * gpus.MIB, 23 * gpus.MIB]),
        ([8, 9], [0, 3 * gpus.MIB]),
        ([9], None),  # without a number
        ([11], None),  # not there, or of another name space
    ],
)
def test_memory_of_processes_is_summed_by_gpu(pids: list[int], held: list[int] | None) -> None:
    assert gpus.bytes_of(pids) == held


def test_without_a_driver_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ask", lambda fields, form, of="gpu": [])
    assert (gpus.free_bytes(), gpus.bytes_of([7])) == ([], None)
