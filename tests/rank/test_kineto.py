"""Profiles without ranks: traces made by hand, the watched steps, and shares of several ranks."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import DataError, SpecError
from ddl_core.timing import MARK
from ddl_tools.rank.kineto import Event, kernel_shares, read_trace, timeline
from ddl_tools.rank.profiler import WARMUP, first_step, ranks
from ddl_tools.records.profiling import PARTS

MAIN, AUTOGRAD, OTHER = 1, 2, 3
NCCL = {
    "ddp": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "horovod": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "deepspeed": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
CUDNN = "cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
DALI = "void dali::kernels::resampling::ResampleKernel"


def span(name: str, start: float, end: float, category: str = "cpu_op", thread: int = MAIN):
    return Event(name, category, thread, start, end)


def note(name: str, start: float, end: float | None = None, thread: int = MAIN) -> Event:
    return span(name, start, start if end is None else end, "user_annotation", thread)


def step(number: int, start: float, end: float) -> Event:
    return note(f"ProfilerStep#{number}", start, end)


def mark(phase: str, time: float, thread: int = MAIN) -> Event:
    return note(MARK + phase, time, thread=thread)


def on_gpu(name: str, launched: float | None, start: float, end: float, kind: str = "kernel"):
    """Return a kernel and, unless it was launched before the trace began, its launch."""
    number = round(1e6 * start)
    found = [Event(name, kind, 7, start, end, number)]
    if launched is not None:
        call = Event("cudaLaunchKernel", "cuda_runtime", MAIN, launched, launched + 0.01, number)
        found.append(call)
    return found


def seconds(line) -> dict[str, float]:
    return {name: line.by_step(line.parts()[name]).sum() for name in PARTS}


# One step of ten seconds: data 2, compute 3 (1 of it Python), waiting 2.5, update 1.5, Python 1.
CPU_STEP = [
    step(5, 10, 20),
    mark("compute", 10),
    span("aten::stack", 10.5, 11),  # a loader without processes computes here
    mark("data", 12),
    span("aten::conv2d", 12, 13),
    span("aten::convolution", 12.1, 12.9),
    span("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 13, 17),
    span("aten::add_", 14, 15),
    mark("compute", 15, thread=AUTOGRAD),
    note("gloo:all_reduce", 14.5, 17, thread=OTHER),
    mark("communication", 17.5),
    span("aten::mul_", 17.5, 19),
    mark("update", 19),
    span("aten::relu", 12, 20, thread=OTHER),
]


def test_a_step_on_the_cpu():
    line = timeline(CPU_STEP, 1, on_gpu=False)
    assert seconds(line) == pytest.approx(
        {
            "compute": 1 + 1 + 1.5,
            "communication": 2.5,
            "copies": 0,
            "data": 2,
            "other": 1,
            "idle": 1,
        }
    )
    assert line.overlapped_s() == pytest.approx(0.5)


@pytest.mark.parametrize("strategy", NCCL)
def test_steps_on_a_gpu_end_on_the_device(strategy):
    """The device works two seconds behind the host; what it is late with counts in its step."""
    events = [
        *on_gpu(ADD, None, 7, 12),  # of the step before
        step(3, 10, 20),
        mark("compute", 10),
        mark("data", 10.5),
        *on_gpu(CUDNN, 11, 13, 17),
        mark("compute", 15, thread=AUTOGRAD),
        *on_gpu(NCCL[strategy], 12, 16, 19),
        mark("communication", 18),
        *on_gpu("Memcpy HtoD", 18, 19, 19.5, "gpu_memcpy"),
        mark("update", 19.8),
        step(4, 20, 30),
        mark("compute", 20),
        *on_gpu(ADD, 19.9, 19.5, 21),
        mark("data", 24),
        *on_gpu(CUDNN, 24.1, 25, 30),
        *on_gpu(DALI, 8, 24.2, 24.7),  # after the host got its batch, and nothing else
        mark("compute", 28, thread=AUTOGRAD),
        mark("communication", 28.1),
        *on_gpu(NCCL[strategy], 29, 30, 33),
        mark("update", 30),
    ]
    line = timeline(events, 2, on_gpu=True)
    assert line.steps == pytest.approx([12, 21, 33])
    assert line.by_step(line.parts()["communication"]) == pytest.approx([2, 3])
    found = seconds(line)
    assert sum(found.values()) == pytest.approx(21)
    assert found == pytest.approx(
        {
            "compute": 4 + 1.5 + 5,
            "communication": 2 + 3,
            "copies": 0.5,
            "data": 3 + 0.5,
            "other": 2 * 0.01,  # two launches that nothing hides
            "idle": 2 * (1 - 0.01) - 0.5,
        }
    )
    assert line.overlapped_s() == pytest.approx(1)
    shares = kernel_shares(events, line.steps)
    total = 4 + 3 + 1.5 + 5 + 0.5 + 3
    group = "communication" if strategy == "deepspeed" else "allreduce"
    wanted = dict.fromkeys(shares, 0.0)
    # The addition started before the device's first step was over, the others are within.
    wanted |= {group: 6 / total, "cudnn": 9 / total, "other": 1.5 / total, "data": 0.5 / total}
    assert shares == pytest.approx(wanted)


def test_a_host_that_waits_for_the_mean_without_a_kernel_communicates():
    """Horovod's ranks agree on what to reduce before NCCL has anything to do."""
    events = [
        step(3, 0, 10),
        mark("data", 1),
        *on_gpu(CUDNN, 1, 1, 4),
        mark("compute", 3, thread=AUTOGRAD),
        *on_gpu("Memcpy DtoD", 4, 5, 6, "gpu_memcpy"),
        *on_gpu(NCCL["horovod"], 7, 7, 8),
        mark("communication", 9),
        mark("update", 10),
    ]
    found = seconds(timeline(events, 1, on_gpu=True))
    assert found["communication"] == pytest.approx(9 - 4 - 1)
    assert found["copies"] == pytest.approx(1)


def test_a_gpu_without_kernels_is_an_error_that_says_what_to_look_at():
    with pytest.raises(DataError, match="NVreg_RestrictProfilingToAdminUsers"):
        timeline(CPU_STEP, 1, on_gpu=True)


def test_a_trace_is_read_in_seconds(tmp_path: Path):
    path = tmp_path / "trace.json.gz"
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 5, "tid": 5, "ts": 7e15, "dur": 9},
        {"ph": "X", "cat": "kernel", "name": "k", "tid": 7, "ts": 7e15 + 2e6, "dur": 1e6}
        | {"args": {"correlation": 3}},
        {"ph": "X", "cat": "Trace", "name": "all of it", "tid": "Spans", "ts": 6e15, "dur": 1},
        {"ph": "M", "name": "process_name"},
    ]
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    assert read_trace(path) == [
        Event("aten::add", "cpu_op", 5, 0, pytest.approx(9e-6)),
        Event("k", "kernel", 7, 2, 3, 3),
    ]


@pytest.mark.parametrize("content", [b"{}", b'{"traceEvents": []}', b"no JSON"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=r"no trace of torch\.profiler"):
        read_trace(path)
    path.write_bytes(content)
    with pytest.raises(DataError, match="start the run again"):
        read_trace(path)


def test_too_few_steps_are_refused():
    with pytest.raises(SpecError, match=r"profile_steps = 4, .* 6 steps, .* at most 3 can be"):
        first_step(RunSpec(epochs=2, profile_steps=4), 6)


@pytest.mark.parametrize(("steps", "watched", "first"), [(6, 3, 3), (100, 10, 45), (13, 10, 3)])
def test_the_window_lies_in_the_middle_of_the_epoch(steps, watched, first):
    assert first_step(RunSpec(epochs=2, profile_steps=watched), steps) == first
    assert WARMUP <= first <= steps - watched


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"work": "load"}, "profile_steps = 5 with work = 'load'"),
        ({"epochs": 1}, "with epochs = 1: .* use 2 epochs at least"),
        ({"profile_steps": -1}, "profile_steps = -1"),
        ({"profile_steps": 101}, "profile_steps = 101.* less than or equal to 100"),
    ],
)
def test_what_cannot_be_profiled_is_refused(fields, words):
    with pytest.raises(SpecError, match=words):
        RunSpec.parse({"profile_steps": 5, "epochs": 3, **fields})


def test_a_gpus_row_holds_overlap_and_kernels():
    parts = {"compute": 5, "communication": 2, "copies": 1, "data": 1, "other": 0.5, "idle": 0.5}
    seconds = [parts[name] for name in PARTS]
    first, second = ranks(
        np.array(
            [
                [*seconds, 2.5, 0.5, 0.1, 0.1, 0.2, 0.1, 1.5, 0.5],
                [*seconds, 0.0, 1, 0, 0, 0, 0, 0.5, 1.5],
            ]
        )
    )
    assert first.overlapped == pytest.approx(0.25)
    assert list(first.kernels.values()) == [0.5, 0.1, 0.1, 0.2, 0.1]
    assert second.overlapped == 0
    for one in (first, second):
        assert one.shares.transfer == pytest.approx(0.1)
        assert one.shares.waiting == pytest.approx(0.1)
        assert sum(one.shares.model_dump().values()) == pytest.approx(1)
