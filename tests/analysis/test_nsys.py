"""Reports of Nsight Systems, as `nsys stats` prints them: shares of kernel time."""

from pathlib import Path

import pandas as pd
import pytest

from ddl_core.errors import DataError
from ddl_tools.analysis import nsys, tables
from tests.analysis.conftest import MakeRun
from tests.launch.running import ddl

NAMES = {
    "{CONVOLUTION}": "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tile128x16",
    "{ALLREDUCE}": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, void *)",
    "{ELEMENTWISE}": "void at::native::vectorized_elementwise_kernel<(int)4, at::FillFunctor, 2>",
    "{CROP}": "void dali::kernels::slice_impl::SliceFlipNormalizePermutePadKernel<float, 3>(int)",
}
SHARES = {"allreduce": 0.375, "communication": 0, "data": 0.0625, "cudnn": 0.5, "other": 0.0625}
# Of 2022, by size of the grid ("Med" left out); and now, with another report below.
SUMMARIES = {
    "2022": """\
Processing [rank.0.sqlite] with [/opt/nsight/reports/gpukernsum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name
37.5,300,1,300.0,300,300,0.0,  24    1    1, 512    1    1,"{ALLREDUCE}"
25.0,200,1,200.0,200,200,0.0,   1   40    3, 128    1    1,{CONVOLUTION}
25.0,200,1,200.0,200,200,0.0,   1   48    5, 128    1    1,{CONVOLUTION}
6.2,50,1,50.0,50,50,0.0,   2    1    1, 128    1    1,"{ELEMENTWISE}"
6.2,50,1,50.0,50,50,0.0,   2    1    1, 128    1    1,"{CROP}"

""",
    "now": """\

NOTICE: Existing SQLite export found: rank.0.sqlite

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
50.0,400,2,200.0,200.0,200,200,0.0,{CONVOLUTION}
37.5,300,1,300.0,300.0,300,300,0.0,"{ALLREDUCE}"
6.2,50,1,50.0,50.0,50,50,0.0,"{ELEMENTWISE}"
6.2,50,1,50.0,50.0,50,50,0.0,"{CROP}"

Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
100.0,9000,1,9000.0,9000.0,9000,9000,0.0,cudaLaunchKernel
""",
}
WRONG = {
    "report.nsys-rep": (b"\xff\xfe nothing of the kind", "not text.*nsys stats"),
    "other.csv": (b"Time (%),Total Time (ns),Num Calls,Name\n1,5,1,cuda\n", "no summary.*stats"),
    "empty.csv": (b"Time (%),Total Time (ns),Instances,Name\n", "lists no kernel"),
    "damaged.csv": (b"Total Time (ns),Instances,Name\nmany,1,kernel\n", "damaged"),
    "missing.csv": (None, "No such file"),
}


def report(folder: Path, text: str = SUMMARIES["now"], rank: int = 0) -> Path:
    for place, name in NAMES.items():
        text = text.replace(place, name)
    folder.mkdir(parents=True, exist_ok=True)
    (path := folder / f"rank.{rank}_cuda_gpu_kern_sum.csv").write_text(text)
    return path


@pytest.mark.parametrize("shape", SUMMARIES)
def test_a_summary_has_the_papers_shares(tmp_path: Path, shape: str) -> None:
    found = nsys.table([report(tmp_path, SUMMARIES[shape])])
    assert dict(zip(found["share"], found["value"], strict=True)) == pytest.approx(SHARES)
    assert set(found["of"]) == {tables.KERNELS}
    assert (set(found["rank"]), set(found["note"])) == ({0}, {""})


def test_kernels_that_all_have_one_name_are_pointed_out(tmp_path: Path) -> None:
    """NCCL 2.13 and others: NVIDIA/nccl#714."""
    text = SUMMARIES["now"].replace("{ALLREDUCE}", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)")
    found = nsys.table([report(tmp_path, text)]).set_index("share")
    assert found.loc["communication", "value"] == pytest.approx(0.375)
    assert set(found["note"]) == {nsys.SEND_RECV}


def test_the_run_of_a_report_is_named(make_run: MakeRun) -> None:
    run = make_run()
    found = nsys.table([report(run / "logs" / "attempt_0" / "nsys", rank=3)])
    assert (set(found["rank"]), set(found["run_id"])) == ({3}, {run.name})


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_named_with_what_is_needed(tmp_path: Path, name: str) -> None:
    path, (content, text) = tmp_path / name, WRONG[name]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=text) as error:
        nsys.table([path])
    assert str(path) in str(error.value)


def test_the_command_prints_and_writes_the_table(tmp_path: Path) -> None:
    paths = [report(tmp_path, rank=rank) for rank in (0, 1)]
    out = tmp_path / "out.csv"
    done = ddl("profile", "import", *paths, paths[0], "--csv", out)  # one is named twice
    assert done.exit_code == 0, done.output
    (line,) = [row for row in done.output.splitlines() if str(paths[0]) in row]
    assert line.split()[-5:] == ["37.5", "0.0", "6.2", "50.0", "6.2"]
    assert len(pd.read_csv(out)) == 2 * 5
