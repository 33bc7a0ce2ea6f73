"""A training script of the user's, measured: real commands, with rates that are known."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ddl_core.errors import STOPPED, LaunchError, SpecError
from ddl_tools.consent import allowing
from ddl_tools.launch import interleave
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.launch.study import doubts, plan_run, run_study
from ddl_tools.names import label
from ddl_tools.processes import import_path
from ddl_tools.records.damage import verify
from ddl_tools.records.ledger import entry
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import read_epochs, read_record, read_rows
from ddl_tools.study import Study
from tests.launch.running import wait_for

PYTHON = sys.executable
KNOWN = """
    import json, os, sys, time
    import neighbour
    step_s, images = float(sys.argv[1]), int(sys.argv[2])
    while True:
        time.sleep(step_s)
        print(json.dumps({"images": images}))
"""
pytestmark = pytest.mark.multiprocess


@pytest.fixture
def script(tmp_path: Path) -> Any:
    (tmp_path / "neighbour.py").write_text("")

    def write(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return f"{PYTHON} {path}"

    return write


def study(command: str, axes: Any = (), **base: Any) -> Study:
    fields = {"framework": "command", "command": command, "epochs": 2, "discard_steps": 2, **base}
    return Study.model_validate(
        {"name": "own", "question": "?", "base": fields, "axes": [dict(axes)], "repeats": 1}
    )


def measured(asked: Study, tree: Tree) -> list[float]:
    """Return the throughput of each run's warm windows."""
    entries = run_study(asked, tree, progress=False)
    assert [item.state for item in entries] == ["completed"] * len(entries), entries[0].reason
    rows = [row for item in entries for row in read_epochs(item.directory) if not row.cold]
    return [row.throughput_samples_per_s for row in rows]


def slept(*rates: float) -> Any:
    """Return what the rates of a script that sleeps are like: a busy machine makes it slower."""
    return pytest.approx([0.8 * one for one in rates], rel=0.3)


def started(word: str) -> list[psutil.Process]:
    """Return the processes that have a word in their command."""
    return [one for one in psutil.process_iter(["cmdline"]) if word in str(one.info["cmdline"])]


def failure(command: str, tree: Tree, **base: Any) -> str:
    (item,) = run_study(study(command, **base), tree, progress=False)
    assert item.state == "failed"
    return item.reason


def test_a_known_rate_is_found(script: Any, tmp_path: Path) -> None:
    command = f"{script(KNOWN)} {{step_s}} {{images}}"
    asked = study(command, {"step_s": [0.05, 0.1], "images": [10]})
    assert label(asked.expand()) == ["0.05", "0.1"]
    assert measured(asked, Tree(tmp_path)) == slept(200, 100)


def test_torchrun_does_not_hide_why_a_rank_failed(script: Any, tmp_path: Path) -> None:
    command = script("raise SystemExit('no such data')")
    said = failure(command, Tree(tmp_path), strategy="torchrun", gpus_per_node=2)
    assert said.endswith("no such data")


def test_cpu_seconds_of_children_that_have_ended_count(script: Any, tmp_path: Path) -> None:
    """Loader processes may end with each epoch: windows would seem to be disturbed."""
    text = """
        import subprocess, sys
        while True:
            subprocess.run([sys.executable, "-c", "sum(range(2 * 10**7))"])
            print('{"images": 1}', flush=True)
    """
    (item,) = run_study(study(script(text)), Tree(tmp_path), progress=False)
    assert all(row.cpu_s > 0.3 * row.wall_s for row in read_epochs(item.directory))
    assert all((row.max_memory_bytes or 0) > 10**6 for row in read_epochs(item.directory))


def test_a_script_starts_where_and_with_what_its_user_is(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in our folder, nor with the rank, the meeting point and the threads of our process."""
    script("""
        import json, os, pathlib, time
        pathlib.Path("seen.json").write_text(json.dumps(dict(os.environ)))
        while True:
            time.sleep(0.1)
            print('{"images": 1}')
    """)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    measured(study(f"{PYTHON} train.py"), Tree(tmp_path / "results"))
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["OMP_NUM_THREADS"] == "7"
    ours = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "MKL_NUM_THREADS"}
    assert not seen.keys() & ours


def test_processor_time_before_a_window_is_none_of_it(script: Any, tmp_path: Path) -> None:
    """Set-up, or a step that a pause has cut: rounds are judged by it (`rounds_left_out`)."""
    command = script("""
        import time
        while time.process_time() < 3:
            pass
        while True:
            time.sleep(0.1)
            print('{"images": 1}')
    """)
    asked, tree = study(command, epochs=1), Tree(tmp_path)
    run_study(asked, tree, progress=False)
    (row,) = read_epochs(tree.study("own") / asked.expand()[0].run_id)
    assert row.cpu_s < 1


def test_ranks_of_torchrun_count_together(script: Any, tmp_path: Path) -> None:
    asked = study(f"{script(KNOWN)} 0.1 10", strategy="torchrun", gpus_per_node=2)
    assert measured(asked, Tree(tmp_path)) == slept(200)


def test_one_rank_that_reports_of_several_is_told(script: Any, tmp_path: Path) -> None:
    text = KNOWN.replace("        print", '        if os.environ["RANK"] == "0": print')
    asked, tree = (
        study(f"{script(text)} 0.1 10", strategy="torchrun", gpus_per_node=2),
        Tree(tmp_path),
    )
    assert measured(asked, tree) == slept(100)
    records = [read_record(tree.study("own") / one.run_id) for one in asked.expand()]
    assert any("1 of 2 ranks say how many images" in line for line in doubts(records))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import sys; sys.exit('no such data')", "status 1; its last lines: no such data"),
        ("print('hello')", 'no line like {"images": 256}; it printed: hello'),
        ("[print('{\"images\": 3}') for _ in range(9)]", "ended by itself in window 1 of 2"),
        ("print('{\"images\": -3}', flush=True); import time; time.sleep(99)", "images = -3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by signal 9"),
    ],
)
def test_a_script_that_cannot_be_measured_says_why(
    script: Any, tmp_path: Path, text: str, why: str
) -> None:
    assert why in failure(script(text), Tree(tmp_path))


@pytest.mark.parametrize(
    ("text", "variable", "why"),
    [
        (
            "print('hello', flush=True)",
            "DDL_SETUP_TIMEOUT",
            r"no line like .* within 7 s; it printed: hello",
        ),
        ("print('{\"images\": 3}', flush=True)", "DDL_STALL_TIMEOUT", "no progress for"),
    ],
)
def test_a_script_that_hangs_is_ended(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, variable: str, why: str
) -> None:
    monkeypatch.setenv(variable, "8")
    said = failure(script(f"{text}; import time; time.sleep(987654)"), Tree(tmp_path))
    assert re.search(why, said)
    assert started("987654") == []


RUBBISH = """
    import sys, time
    out = sys.stdout.buffer
    out.write(b"\\xff\\x00{\\n" + b"x" * 10**6 + b"\\n{broken\\n[]\\n{}\\r")
    while True:
        time.sleep(0.1)
        out.write(b'\\xff"images": 3\\n{"images": 10}\\n')
        out.flush()
"""


def test_rubbish_between_the_lines_is_left_out(script: Any, tmp_path: Path) -> None:
    assert measured(study(script(RUBBISH)), Tree(tmp_path)) == slept(100)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "cannot start 'no-such-program'" in failure("no-such-program", Tree(tmp_path))


def test_what_a_script_leaves_behind_is_ended(script: Any, tmp_path: Path) -> None:
    child = f"{PYTHON} -c 'import time; time.sleep(987653)'"
    text = f"""
        import os, time
        if os.fork() == 0:
            os.setsid()
            os.execvp("sh", ["sh", "-c", "exec {child}"])
        while True:
            time.sleep(0.1)
            print('{{"images": 1}}')
    """
    measured(study(script(text)), Tree(tmp_path))
    assert started("987653") == []


def test_a_command_of_a_record_is_not_started(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DDL_COMMANDS", raising=False)
    asked, tree = study(f"{script(KNOWN)} 0.1 10"), Tree(tmp_path)
    folder = plan_run(asked.expand()[0], "own", tree)
    with pytest.raises(LaunchError, match="was not named in this call"):
        run_ranks(folder)
    assert read_record(folder).status == "failed"
    with allowing([asked.expand()[0].command]):
        assert run_ranks(folder).status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.extended)]
)
def test_a_command_that_was_stopped_is_measured_anew(
    script: Any, tmp_path: Path, number: signal.Signals
) -> None:
    """Windows of two starts of a program are never those of one start."""
    path, tree = tmp_path / "own.yaml", Tree(tmp_path / "results")
    base = {"framework": "command", "command": f"{script(KNOWN)} 0.1 10", "epochs": 3}
    path.write_text(yaml.safe_dump({"name": "own", "question": "?", "base": base, "repeats": 1}))
    words = [PYTHON, "-m", "ddl_tools.cli", "study", "run", str(path), "--results", str(tree.root)]
    (spec,) = Study.load(path).expand()
    folder = tree.study("own") / spec.run_id
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": import_path()}) as call:
        wait_for(lambda: folder.exists() and len(read_rows(folder)) == 2, "two windows", 120)
        call.send_signal(number)
        assert call.wait(60) == (STOPPED if number == signal.SIGINT else -number)
    wait_for(lambda: started(str(tmp_path / "train.py")) == [], "the end of the command")
    wait_for(lambda: entry(spec, folder).state == "interrupted", "the end of the run")
    (item,) = run_study(Study.load(path), tree, progress=False)
    assert item.state == "completed"
    kept = [(row.attempt, row.epoch, row.cold) for row in read_epochs(folder)]
    assert kept == [(1, 0, True), (1, 1, False), (1, 2, False)]
    assert [row.attempt for row in read_rows(folder)] == [0, 0, 1, 1, 1]
    (whole,) = verify(tree, "own")
    assert not whole.damages


def test_a_word_may_be_called_as_a_field_of_other_runs() -> None:
    asked = Study.model_validate(
        {
            "name": "own",
            "question": "?",
            "base": {"framework": "command", "command": "python train.py --precision {precision}"},
            "axes": {"precision": ["fp32", "bf16"]},
            "interleave": {"reference": {"precision": "fp32"}},
        }
    )
    reference = "python train.py --precision fp32"
    assert reference in {run.command for run in asked.expand()}
    assert asked.reference(0).command == reference


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"command": "python train.py {batch}"}, "neither base nor axes give batch a value"),
        ({"batch": 3}, "batch: no field of a run, and the command has no {batch}"),
        ({"model": "resnet18"}, "model = 'resnet18' changes nothing in a command of yours"),
        ({"command": None}, "needs a command"),
        ({"gpus_per_node": 2}, "it is one process"),
    ],
)
def test_what_a_command_does_not_see_is_refused(fields: dict[str, Any], why: str) -> None:
    base = {"framework": "command", "command": "python train.py", **fields}
    with pytest.raises(SpecError, match=why):
        Study.model_validate({"name": "own", "question": "?", "base": base}).expand()


def test_commands_that_would_stand_still_for_long_form_blocks(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleave, "PAUSE_S", 0.0)
    fields = study(f"{script(KNOWN)} {{step_s}} 10", {"step_s": [0.05, 0.1, 0.2]}).model_dump()
    asked = Study.model_validate(fields | {"interleave": {"reference": {"step_s": 0.05}}})
    again = 200.0  # the reference, once in each block
    rates = measured(asked, Tree(tmp_path))
    assert rates == slept(200, 100, 50, again)
    rows = [read_epochs(one.directory)[-1] for one in run_study(asked, Tree(tmp_path))]
    blocks = [row.interleave.block for row in rows if row.interleave]
    assert blocks[0] == blocks[1] != blocks[2] == blocks[3]
