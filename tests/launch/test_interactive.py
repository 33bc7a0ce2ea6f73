"""Runs on engines that stay: the same record as any run, knobs, hangs, and nothing left behind."""

import os
import signal
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import DataError, LaunchError
from ddl_tools.launch import interactive
from ddl_tools.launch.interactive import Engines
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.screen import rank_table
from ddl_tools.launch.study import plan_run
from ddl_tools.records.paths import results
from ddl_tools.records.run import read_epochs, read_record
from ddl_tools.subreaper import family
from tests.fields import EMULATED
from tests.launch.fixtures import Start
from tests.launch.running import TINY, error_of, is_training, wait_for
from tests.launch.stand_ins import StandIns

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(900)]
PAIR = {**TINY, "strategy": "ddp", "gpus_per_node": 2, "epochs": 2}
LONG = {"train_images": 100_000, "epochs": 1000}


def plan(study: str, **fields: Any) -> Path:
    return plan_run(RunSpec(**{**PAIR, **fields}), study, results())


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the engines look for modules."""
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def engines(networks: Path) -> Iterator[Engines]:
    """Engines for one test after the other: starting them takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(networks))
        with Engines(RunSpec(**PAIR)) as found:
            yield found


def engine_pids(engines: Engines) -> list[int]:
    return [place["pid"] for place in engines.ranks]


def assert_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the end of the engines", 30)


def when_training(run_dir: Path, action: Any, *arguments: Any) -> threading.Thread:
    def wait_and_act() -> None:
        wait_for(lambda: is_training(run_dir), "training")
        action(*arguments)

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def test_runs_equal_those_of_the_launcher_and_the_engines_stay(engines: Engines) -> None:
    before = engine_pids(engines)
    run_dir = plan("kept")
    record = engines.run(run_dir)
    changed = engines.run(plan("kept", local_batch_size=4))

    assert record.status == changed.status == "completed"
    assert engine_pids(engines) == before
    assert [row.phase for row in read_epochs(run_dir)] == ["train", "eval", "train", "eval"]
    for rank in (0, 1):
        assert (run_dir / f"logs/attempt_0/engines/attempt_0/{rank}/stderr.log").exists()
    assert record.provenance is not None
    by_launcher = run_ranks(plan("launched"))
    assert record.weights_sha256 == by_launcher.weights_sha256
    assert changed.weights_sha256 != record.weights_sha256


def test_each_rank_tells_its_own_rate_while_it_trains(engines: Engines) -> None:
    run_dir = plan("live", train_images=4800, epochs=1)  # the last look is late in it
    seen: list[list[dict[str, Any]]] = []
    engines.run(run_dir, on_ranks=seen.append)
    assert [state["rank"] for state in seen[-1]] == [0, 1]
    assert [state["pid"] for state in seen[-1]] == engine_pids(engines)
    assert {state["phase"] for state in seen[-1]} == {"done"}
    training = [
        states
        for states in seen
        if all(state.get("phase") == "train" and state["step"] for state in states)
    ]
    assert training, rank_table(seen[-1])
    for state in training[-1]:
        assert 0 < state["step"] <= state["steps"] == 300
    # A rank's own throughput: all ranks together make that of the run.
    (row, *_) = read_epochs(run_dir)
    total = sum(state["images_per_s"] for state in training[-1])
    assert row.throughput_samples_per_s / 1.9 < total < row.throughput_samples_per_s * 1.9


def test_what_does_not_fit_the_engines_is_refused_and_they_stay(engines: Engines) -> None:
    before = engine_pids(engines)
    unfit: dict[str, dict[str, Any]] = {
        "gpus_per_node = 1, but these engines": {"strategy": "single", "gpus_per_node": 1},
        "prefix = 'env'.*use ranks.run_ranks": {"prefix": "env"},
        "framework = 'keras'.*use ranks.run_ranks": {"framework": "keras", "strategy": "spmd"},
        "emulated = true.*use ranks.run_ranks": EMULATED,
    }
    for words, fields in unfit.items():
        run_dir = plan("unfit", **fields)
        with pytest.raises(LaunchError, match=words):
            engines.run(run_dir)
        assert read_record(run_dir).status == "planned"
    run_dir = plan("broken", loader="native", dataset="nowhere")
    with pytest.raises(DataError, match="nowhere"):
        engines.run(run_dir)
    assert read_record(run_dir).status == "failed"
    assert engine_pids(engines) == before


def test_the_cpu_time_of_engines_that_ended_counts_as_ours() -> None:
    """Else `ddl recommend` takes it for that of other programs."""
    with Engines(RunSpec(**PAIR)) as engines:
        spent = [psutil.Process(pid).cpu_times().user for pid in engine_pids(engines)]
        before = os.times().children_user
    assert os.times().children_user - before >= sum(spent) > 0


def test_the_ranks_of_one_machine_listen_on_it_alone(engines: Engines) -> None:
    seen: set[str] = set()

    def look(_ranks: Any) -> None:
        for pid in engine_pids(engines):
            links = psutil.Process(pid).net_connections("inet")
            seen.update(one.laddr.ip for one in links if one.status == psutil.CONN_LISTEN)

    engines.run(plan("ports", **{**LONG, "train_images": 4000, "epochs": 1}), on_ranks=look)
    assert seen == {"127.0.0.1"}


def test_a_hanging_rank_is_named_and_the_next_run_gets_new_engines(engines: Engines) -> None:
    before = engine_pids(engines)  # warm by now, so that nothing else takes seconds
    run_dir = plan("hang", **LONG)
    stopping = when_training(run_dir, os.kill, before[1], signal.SIGSTOP)
    with pytest.raises(LaunchError, match="the others wait for rank 1"):
        engines.run(run_dir, stall_timeout=10)
    stopping.join()
    assert_gone(before)
    assert (error_of(run_dir).kind, error_of(run_dir).rank) == ("Timeout", 1)
    assert engines.run(plan("hang")).status == "completed"
    assert set(engine_pids(engines)).isdisjoint(before)


def test_an_interrupt_ends_the_engines_and_is_recorded(engines: Engines) -> None:
    before = engine_pids(engines)
    run_dir = plan("stop", **LONG)
    stopping = when_training(run_dir, os.kill, os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        engines.run(run_dir)
    stopping.join()
    assert_gone(before)
    assert error_of(run_dir).kind == "Interrupted"


@pytest.mark.parametrize("strategy", ["horovod", "deepspeed"])
@pytest.mark.extended
def test_other_strategies_get_new_engines_for_every_run(strategy: str) -> None:
    if find_spec(strategy) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{strategy} is not installed")
        pytest.skip(f"{strategy} is not installed")
    with Engines(RunSpec(**{**PAIR, "strategy": strategy})) as engines:
        before = engine_pids(engines)
        first = engines.run(plan("kept", strategy=strategy))
        second = engines.run(plan("again", strategy=strategy))
    assert_gone(before)
    by_launcher = run_ranks(plan("launched", strategy=strategy))
    assert first.weights_sha256 == second.weights_sha256 == by_launcher.weights_sha256


def test_an_edited_network_is_that_of_the_next_run(engines: Engines, networks: Path) -> None:
    file = networks / "edited_net.py"
    file.write_text("from ddl_core.models import resnet8 as net\n")
    engines.run(plan("first", model="edited_net:net"))
    file.write_text("def net(classes):\n    raise ValueError('this is the new code')\n")
    with pytest.raises(LaunchError, match="this is the new code"):
        engines.run(plan("second", model="edited_net:net"))


def test_engines_that_cannot_start_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "CONTROLLER", ("--HeartMonitor.period=never",))
    with pytest.raises(LaunchError, match=r"cannot be started: (.|\n)*never"):
        Engines(RunSpec(**PAIR))


@pytest.mark.extended
def test_inside_a_job_engines_are_tasks_of_one_step(
    job: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"nodes": 2, "gpus_per_node": 1}
    with Engines(RunSpec(**{**PAIR, **shape})) as engines:
        first = engines.run(plan("tasks", **shape))
        engines.run(plan("tasks", **shape, local_batch_size=4))
        assert first.world_size == 2
        assert [place["rank"] for place in engines.ranks] == [0, 1]
        cluster = engines._cluster
        started = [cluster.controller, *cluster.engine_set.processes]
        own = [two for one in started for two in family(psutil.Process(one.pid))]
        assert len(own) > 4
    assert not any(map(family, own))
    assert not list((results().root / ".engines").glob("[!.]*"))
    monkeypatch.delenv("SLURM_JOB_ID")
    assert run_ranks(plan("one_node")).weights_sha256 == first.weights_sha256


KILLED = """
import sys, time
from ddl_tools.launch.interactive import Engines
from ddl_core.config import RunSpec
engines = Engines(RunSpec.model_validate_json(sys.argv[1]))
print(*(place["pid"] for place in engines.ranks), flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_a_notebook_that_is_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the folder of logs stays
    caller = start("-c", KILLED, RunSpec(**PAIR).model_dump_json())
    assert caller.stdout
    pids = [int(pid) for pid in caller.stdout.readline().split()]
    assert len(pids) == 2
    left = psutil.Process(caller.pid).children(recursive=True)
    assert {process.pid for process in left} > set(pids)
    os.kill(pids[1], signal.SIGSTOP)  # as one that hangs, which hears nothing else
    caller.kill()
    _, alive = psutil.wait_procs(left, timeout=60)
    assert alive == []
