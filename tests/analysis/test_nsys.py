"""Files of Nsight Systems: databases made to the exporter's schema, reports as `nsys stats` prints.

The columns are those of exports by 2022.2, 2022.4, 2024.5 and 2026.2; see docs/profiling.md.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from ddl_core.analysis import nsys, tables
from ddl_core.cli import main
from ddl_core.errors import DataError
from ddl_core.spec.run import RunSpec
from tests.analysis.conftest import MakeRun

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, correlationId INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, globalPid INTEGER,
    bytes INTEGER NOT NULL
);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, globalPid INTEGER,
    bytes INTEGER NOT NULL
);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT NULL,
    correlationId INTEGER
);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER,
    textId INTEGER
);
"""
MS = 1_000_000
VM = 0x1000000000000  # the machine's number, above that of the process
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor, 2>"
CROP = "void dali::kernels::slice_impl::SliceFlipNormalizePermutePadKernel<float, 3>(int)"

# One step between 1 s and 2 s, worked out by hand; milliseconds.
KERNELS = [
    (100, 600, ELEMENTWISE),  # before the window
    (1000, 1400, CONVOLUTION),
    (1300, 1600, ALLREDUCE),
    (1650, 1700, ELEMENTWISE),
    (1700, 1750, CROP),
]
COPIES = [(1610, 1650)]
CALLS = [(1855, 1900, "trains"), (1950, 1990, "loads")]
OPERATORS = [(1895, 1905, "trains"), (1960, 1995, "loads")]
THREADS = {"trains": 8, "loads": 9}
MARKS = [
    (1400, "compute"),
    (1620, "communication"),
    (1690, "update"),
    (1760, "compute"),
    (1860, "data"),
]
SHARES = {
    "compute": 0.45,
    "communication": 0.21,  # 1400 to 1600 by NCCL, then 10 ms of waiting for the mean
    "copies": 0.04,
    "data": 0.15,  # 1700 to 1750 by DALI's kernel, 1760 to 1860 waiting
    "other": 0.045,  # 1860 to 1900 in a call, to 1905 in an operator
    "idle": 0.105,
    "overlapped": 0.10,
}
KERNEL_SHARES = {"allreduce": 0.375, "communication": 0, "data": 0.0625, "cudnn": 0.5}
KERNEL_SHARES["other"] = 0.0625


class Database:
    """A database that is being filled; processes are told apart by their number."""

    def __init__(self, path: Path) -> None:
        self.base = sqlite3.connect(path)
        self.base.executescript(SCHEMA)

    def text(self, value: str) -> int:
        number = self.base.execute("SELECT count(*) FROM StringIds").fetchone()[0]
        self.base.execute("INSERT INTO StringIds VALUES (?, ?)", (number, value))
        return number

    def work(self, pid: int = 7, gpu: int = 0, later: int = 0) -> None:
        process = VM + (pid << 24)
        for start, end, name in KERNELS:
            row = (*self.span(start, end, later), gpu, 7, process, self.text(name))
            values = (*row, self.text("short"), None)
            self.base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?)", values
            )
        for start, end in COPIES:
            row = (*self.span(start, end, later), gpu, process, 4096)
            self.base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?)", row)
        for start, end, thread in CALLS:
            row = (
                *self.span(start, end, later),
                process + THREADS[thread],
                self.text("cudaMalloc"),
                None,
            )
            self.base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", row)

    def loop(self, pid: int = 7, later: int = 0, by_id: bool = False) -> None:
        """Add what torch's emit_nvtx makes of the marks: short ranges, with its own suffix."""
        ranges = [(at, at + 0.01, f"ddl_core.mark.{phase}, op_id = 3") for at, phase in MARKS]
        ranges = [(1000, 2000, "ddl_core.window"), *ranges]
        rows = [(*one, "trains") for one in ranges]
        rows += [(start, end, "aten::add_, seq = 5", thread) for start, end, thread in OPERATORS]
        for start, end, text, thread in rows:
            given = (None, self.text(text)) if by_id else (text, None)
            owner = VM + (pid << 24) + THREADS[thread]
            row = (*self.span(start, end, later), 59, given[0], owner, given[1])
            self.base.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)", row)

    def steps(self, steps: list[tuple[float, float, float, float]]) -> None:
        """Add steps of an all-reduce each: launched, start, end; and when the host was done."""
        process, thread = VM + (7 << 24), VM + (7 << 24) + THREADS["trains"]
        marks = [(1000.0, 2000.0, "ddl_core.window")]
        for number, (launched, start, end, done) in enumerate(steps):
            name = self.text(ALLREDUCE)
            row = (*self.span(start, end, 0), 0, 7, process, name, name, number)
            self.base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?)", row
            )
            call = (*self.span(launched, launched, 0), thread, name, number)
            self.base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", call)
            marks.append((done, done + 0.01, "ddl_core.mark.update, op_id = 3"))
        for start, end, text in marks:
            values = (*self.span(start, end, 0), 59, text, thread, None)
            self.base.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)", values)

    @staticmethod
    def span(start: float, end: float, later: int) -> tuple[int, int]:
        return int((start + later) * MS), int((end + later) * MS)


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    def make(*fill: Callable[[Database], None], name: str = "rank.1.sqlite") -> Path:
        with closing((database := Database(tmp_path / name)).base):
            for step in fill:
                step(database)
            database.base.commit()
        return tmp_path / name

    return make


def values(table: pd.DataFrame, whole: str) -> dict[str, float]:
    part = table[table["of"] == whole]
    return dict(zip(part["share"], part["value"], strict=True))


@pytest.mark.parametrize("by_id", [False, True])
def test_shares_worked_out_by_hand(export: Callable[..., Path], by_id: bool) -> None:
    found = nsys.table([export(Database.work, lambda base: base.loop(by_id=by_id))])
    assert values(found, tables.WINDOW) == pytest.approx(SHARES)
    assert values(found, tables.KERNELS) == pytest.approx(KERNEL_SHARES)
    assert set(found["rank"]) == {1}
    assert set(found["pid"]) == {7}
    assert set(found["note"]) == {nsys.ALONE}
    assert list(found)[: len(tables.PROFILE_COLUMNS)] == list(tables.PROFILE_COLUMNS)


# The host is far ahead: it has ended both steps before the device ends the first.
FIRST = [(1010, 1100, 1400, 1050), (1060, 1600, 1700, 1090)]
SECOND = [(1010, 1300, 1400, 1050), (1060, 1500, 1700, 1090)]


def test_all_ranks_together_tell_transfer_from_waiting(export: Callable[..., Path]) -> None:
    paths = [
        export(lambda base: base.steps(FIRST), name="rank.0.sqlite"),
        export(lambda base: base.steps(SECOND), name="rank.1.sqlite"),
    ]
    found = nsys.table(paths)
    for rank, waiting in ((0, 0.2), (1, 0.1)):
        shares = values(found[found["rank"] == rank], tables.WINDOW)
        assert list(shares) == [
            *("compute", "transfer", "waiting", "copies", "data", "other", "idle", "overlapped")
        ]
        assert shares["transfer"] == pytest.approx(0.1 + 0.1)  # the last to come, in each step
        assert shares["waiting"] == pytest.approx(waiting)
        assert sum(shares.values()) == pytest.approx(1)
    assert set(found["note"]) == {""}


@pytest.mark.parametrize("other", ["twice", "fewer steps", "a rank too high"])
def test_ranks_that_do_not_fit_are_not_compared(export: Callable[..., Path], other: str) -> None:
    first = export(lambda base: base.steps(FIRST), name="rank.0.sqlite")
    name = {"twice": "again.rank.0.sqlite", "a rank too high": "rank.2.sqlite"}
    steps = SECOND[:1] if other == "fewer steps" else SECOND
    second = export(lambda base: base.steps(steps), name=name.get(other, "rank.1.sqlite"))
    found = nsys.table([first, second])
    assert "transfer" not in set(found["share"])
    assert set(found["note"]) == {nsys.ALONE}


def test_processes_and_gpus_are_kept_apart(export: Callable[..., Path]) -> None:
    path = export(
        Database.work,
        Database.loop,
        lambda base: base.work(gpu=1, later=300),
        lambda base: base.work(pid=8, later=300),  # its GPU has the same number
        lambda base: base.loop(pid=8, later=300),
    )
    found = nsys.table([path])
    assert len(found[["pid", "gpu"]].drop_duplicates()) == 3
    for pid in (7, 8):
        own = found[(found["pid"] == pid) & (found["gpu"] == "0")]
        assert values(own, tables.WINDOW) == pytest.approx(SHARES)


def test_without_marks_waiting_for_data_is_not_known(export: Callable[..., Path]) -> None:
    def no_loader(base: Database) -> None:
        base.work()
        base.base.execute("DROP TABLE NVTX_EVENTS")
        base.base.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= 1700000000")

    found = nsys.table([export(no_loader)])
    shares = values(found, tables.WINDOW)
    assert pd.isna(shares.pop("data"))
    assert shares == pytest.approx(  # from 100 to 1700
        {
            "compute": 950 / 1600,
            "communication": 200 / 1600,
            "copies": 40 / 1600,
            "other": 0,
            "idle": 410 / 1600,
            "overlapped": 100 / 1600,
        }
    )
    assert found["note"].str.contains("no marks of the training loop").all()


def test_the_run_of_a_report_is_named(export: Callable[..., Path], make_run: MakeRun) -> None:
    folder = make_run() / "logs" / "attempt_0" / "nsys"
    folder.mkdir(parents=True)
    path = export(Database.work).rename(folder / "rank.3.sqlite")
    found = nsys.table([path])
    assert set(found["rank"]) == {3}
    assert set(found["run_id"]) == {folder.parents[2].name}
    assert set(found["world_size"]) == {RunSpec.parse({}).world_size}


SUMMARIES = {
    # The three shapes of the report: until 2021; 2022, by size of the grid ("Med" left out); now.
    "old": """\
"Time(%)","Total Time (ns)","Instances","Average","Minimum","Maximum","Name"
50.0,400,1,400.0,400,400,"{CONVOLUTION}"
37.5,300,1,300.0,300,300,"{ALLREDUCE}"
6.2,50,1,50.0,50,50,"{ELEMENTWISE}"
6.2,50,1,50.0,50,50,"{CROP}"
""",
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

Processing [rank.0.sqlite] with [/opt/nsight/reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
50.0,400,2,200.0,200.0,200,200,0.0,{CONVOLUTION}
37.5,300,1,300.0,300.0,300,300,0.0,"{ALLREDUCE}"
6.2,50,1,50.0,50.0,50,50,0.0,"{ELEMENTWISE}"
6.2,50,1,50.0,50.0,50,50,0.0,"{CROP}"

Processing [rank.0.sqlite] with [/opt/nsight/reports/cuda_api_sum.py]...

Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
100.0,9000,1,9000.0,9000.0,9000,9000,0.0,cudaLaunchKernel
""",
}
NAMES = {"{CONVOLUTION}": CONVOLUTION, "{ALLREDUCE}": ALLREDUCE, "{CROP}": CROP}
NAMES["{ELEMENTWISE}"] = ELEMENTWISE


def report(folder: Path, text: str) -> Path:
    for place, name in NAMES.items():
        text = text.replace(place, name)
    (path := folder / "rank.0_cuda_gpu_kern_sum.csv").write_text(text)
    return path


@pytest.mark.parametrize("shape", SUMMARIES)
def test_a_summary_has_the_papers_shares_alone(tmp_path: Path, shape: str) -> None:
    found = nsys.table([report(tmp_path, SUMMARIES[shape])])
    assert values(found, tables.KERNELS) == pytest.approx(KERNEL_SHARES)
    assert all(pd.isna(value) for value in values(found, tables.WINDOW).values())
    assert found["note"].str.contains("a sum of kernels has no times").all()


TRACE = """\
Start (ns),Duration (ns),CorrId,GrdX,Bytes (MB),Throughput (MBps),SrcMemKd,Device,Ctx,Strm,Name
1000,400,138,2,None,,None,NVIDIA A100-SXM4-40GB (0),1,7,"{CONVOLUTION}"
1300,300,139,2,None,,None,NVIDIA A100-SXM4-40GB (0),1,13,"{ALLREDUCE}"
1610,40,140,None,262.144,13893.632,Pageable,NVIDIA A100-SXM4-40GB (0),1,7,[CUDA memcpy HtoD]
1650,50,141,2,None,,None,NVIDIA A100-SXM4-40GB (0),1,7,"{ELEMENTWISE}"
5000,10,142,2,None,,None,NVIDIA A100-SXM4-40GB (1),1,7,"{ELEMENTWISE}"
"""


def test_a_trace_has_times(tmp_path: Path) -> None:
    found = nsys.table([report(tmp_path, TRACE)])
    first = values(found[found["gpu"] == "NVIDIA A100-SXM4-40GB (0)"], tables.WINDOW)
    assert pd.isna(first.pop("data"))
    assert first == pytest.approx(  # from 1000 to 1700
        {
            "compute": 450 / 700,
            "communication": 200 / 700,
            "copies": 40 / 700,
            "other": 0,
            "idle": 10 / 700,
            "overlapped": 100 / 700,
        }
    )
    assert found["gpu"].nunique() == 2


def test_kernels_that_all_have_one_name_are_pointed_out(tmp_path: Path) -> None:
    """NCCL 2.13 and others: NVIDIA/nccl#714."""
    text = SUMMARIES["now"].replace("{ALLREDUCE}", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)")
    found = nsys.table([report(tmp_path, text)])
    assert values(found, tables.KERNELS)["communication"] == pytest.approx(0.375)
    assert found["note"].str.contains("some versions name all kernels SendRecv").all()


def wrong(folder: Path, name: str) -> Path:
    path = folder / name
    if name == "no_kernels.sqlite":
        with closing(sqlite3.connect(path)) as base:
            base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    elif name == "none.sqlite":
        with closing(sqlite3.connect(path)) as base:
            base.executescript(SCHEMA)
    elif name == "columns.sqlite":
        with closing(sqlite3.connect(path)) as base:
            base.executescript(SCHEMA)
            base.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
    elif name == "other.csv":
        path.write_text("Time (%),Total Time (ns),Num Calls,Name\n100,5,1,cudaLaunchKernel\n")
    elif name == "unit.csv":
        path.write_text("Time (%),Total Time (us),Instances,Name\n100,5,1,kernel\n")
    elif name == "empty.csv":
        path.write_text("Time (%),Total Time (ns),Instances,Name\n")
    elif name != "missing.csv":
        path.write_bytes(b"\xff\xfe nothing of the kind")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("report.nsys-rep", "nsys export --type sqlite"),
        ("damaged.sqlite", "is not an SQLite file"),
        ("no_kernels.sqlite", "no table CUPTI_ACTIVITY_KIND_KERNEL"),
        ("none.sqlite", "its table of kernels is empty"),
        ("columns.sqlite", r"no such column: \S*globalPid; needed is what `nsys export"),
        ("other.csv", "has other columns: Time .* needed is what `nsys stats"),
        ("unit.csv", "has other columns: Time .* needed is what `nsys stats"),
        ("empty.csv", "lists no kernel"),
        ("bytes.csv", "is not text"),
        ("missing.csv", "cannot read .*: No such file"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_needed(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(DataError, match=text) as error:
        nsys.table([path := wrong(tmp_path, name)])
    assert str(path) in str(error.value)


def test_the_command_prints_and_writes_the_table(
    export: Callable[..., Path], tmp_path: Path
) -> None:
    path = export(Database.work, Database.loop)
    summary = report(tmp_path, SUMMARIES["now"])
    out = tmp_path / "out.csv"
    words = ["profile", "import", str(path), str(summary), "--csv", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    (line,) = [row for row in done.output.splitlines() if str(path) in row and "45.0" in row]
    assert line.split()[-7:] == ["45.0", "21.0", "4.0", "15.0", "4.5", "10.5", "10.0"]
    assert pd.read_csv(out)["value"].notna().sum() == 7 + 5 + 5


def test_a_wrong_file_ends_the_command_with_one_message(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["profile", "import", str(wrong(tmp_path, "other.csv"))])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
