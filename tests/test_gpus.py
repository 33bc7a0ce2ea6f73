"""GPUs and their memory, as the driver's tool and the kernel tell them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError
from ddl_tools import gpus
from ddl_tools.doctor import machine
from ddl_tools.scaling.candidate import Machine

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


AMD, INTEL, NVIDIA = "0x1002", "0x8086", "0x10de"
WINDOW = "0x{:016x} 0x{:016x} 0x000000000014220c"


@pytest.fixture
def pci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Pci":
    """A machine without NVIDIA's driver, and what its kernel shows."""
    monkeypatch.setattr(gpus, "ask", lambda fields, form, of="gpu": [])
    monkeypatch.setattr(gpus, "PCI", tmp_path)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Pci(tmp_path)


class Pci:
    """Writes what Linux says of PCI devices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, vendor: str, kind: str, gib: float, **files: str) -> None:
        """Add a device whose largest window onto its memory has so many GiB."""
        device = self.folder / f"0000:{len(list(self.folder.iterdir())):02}:00.0"
        device.mkdir()
        window = WINDOW.format(2**40, 2**40 + int(gib * 2**30) - 1)
        told = {"vendor": vendor, "class": kind, "resource": f"{WINDOW.format(0, 0)}\n{window}"}
        for name, text in {**told, "device": "0x0bd5", **files}.items():
            (device / name).write_text(f"{text}\n")


def test_gpus_of_amd_are_found_without_a_driver_of_nvidia(pci: Pci) -> None:
    for _ in range(4):
        pci.add(
            AMD,
            "0x120000",
            0.25,
            mem_info_vram_total=str(64 * 10**9),
            product_name="AMD Instinct MI250X",
        )
    found = gpus.listed()
    assert found is not None
    assert (found.vendor, found.names) == ("AMD", ("AMD Instinct MI250X",) * 4)
    assert Machine.here().ranks_per_node == 4


def test_a_gpu_of_intel_is_known_by_its_memory(pci: Pci) -> None:
    pci.add(INTEL, "0x038000", 128)
    found = gpus.listed()
    assert found is not None
    assert (found.vendor, found.names) == ("Intel", ("Intel GPU 0x0bd5",))


@pytest.mark.parametrize(
    ("vendor", "kind", "gib", "files"),
    [
        (INTEL, "0x030000", 0.25, {}),  # in a processor
        (AMD, "0x030000", 0.25, {"mem_info_vram_total": str(2**29)}),
        (INTEL, "0x060400", 64, {}),  # a bridge
        ("0x1a03", "0x030000", 8, {}),  # of another vendor: the console of a server
        (AMD, "0x030000", 8, {"mem_info_vram_total": str(4 * 2**30)}),
    ],
)
def test_a_machine_without_a_gpu_of_its_own_computes_on_its_cores(
    pci: Pci, vendor: str, kind: str, gib: float, files: dict[str, str]
) -> None:
    pci.add(vendor, kind, gib, **files)
    assert gpus.listed() is None
    assert gpus.unseen("the CPU") is None


@pytest.mark.parametrize(
    ("vendor", "variable", "value", "left"),
    [
        (AMD, "ROCR_VISIBLE_DEVICES", "1", 1),
        (AMD, "HIP_VISIBLE_DEVICES", "0,1", 2),
        (AMD, "ROCR_VISIBLE_DEVICES", "", 0),
        (INTEL, "ZE_AFFINITY_MASK", "0.0,1.1", 2),
        (INTEL, "CUDA_VISIBLE_DEVICES", "", 3),  # says nothing of these
    ],
)
def test_hidden_gpus_do_not_count(
    pci: Pci, monkeypatch: pytest.MonkeyPatch, vendor: str, variable: str, value: str, left: int
) -> None:
    for _ in range(3):
        pci.add(vendor, "0x038000", 64)
    monkeypatch.setenv(variable, value)
    assert gpus.count() == left


@pytest.mark.parametrize(
    ("vendor", "words"),
    [(AMD, ["built for the CPU", "ROCm", "TORCH_INDEX"]), (INTEL, ["GPUs of Intel (1 x "])],
)
def test_no_run_computes_on_the_cpu_beside_a_gpu(pci: Pci, vendor: str, words: list[str]) -> None:
    pci.add(vendor, "0x038000", 64)
    with pytest.raises(LaunchError) as raised:
        gpus.check(gpus.built_for(SimpleNamespace(cuda=None, hip=None)))
    for word in (*words, "device 'cpu'"):
        assert word in str(raised.value)
    row = next(one for one in machine.resources([RunSpec(device="cpu")]) if one.subject == "gpus")
    assert row.detail.startswith("1 x ")


def test_a_torch_is_named_by_what_it_is_built_for() -> None:
    versions = [("13.0", None), (None, "6.4.1"), (None, None)]
    built = [gpus.built_for(SimpleNamespace(cuda=cuda, hip=hip)) for cuda, hip in versions]
    assert built == ["CUDA 13.0", "ROCm 6.4.1", "the CPU"]
