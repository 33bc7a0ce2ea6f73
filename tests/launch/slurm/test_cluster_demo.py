"""What `make cluster-demo` does: stopped in the middle, it goes on when called again."""

import os
import sys
from pathlib import Path

import pytest

from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import SITES, RunFiles, results
from ddl_tools.records.run import read_record
from ddl_tools.study import Study
from tests.launch.fixtures import Start
from tests.launch.running import study_file, wait_for

DEMO = ("-m", "ddl_tools.emulation.local_slurm", str(SITES / "local" / "demo.sh"))


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.slurm
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cluster")  # skips where there can be none
@pytest.mark.extended
def test_a_stopped_demo_goes_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    path = study_file(tmp_path, train_images=160, epochs=4, checkpoint_every=1)
    (item,) = ledger(Study.load(path), results())
    first = start(*DEMO, str(path))
    wait_for(RunFiles(item.directory).checkpoint.exists, "the first checkpoint", seconds=240)
    first.terminate()
    said, error = first.communicate(timeout=120)
    assert first.returncode == 130, error
    assert "stopped, with the SLURM; the same command goes on" in error
    assert f"running     {item.spec.run_id}" in said
    assert read_record(item.directory).status == "failed"  # its job was given time to say so

    second = start(*DEMO, str(path))
    said, error = second.communicate(timeout=300)
    assert second.returncode == 0, error
    assert f"completed   {item.spec.run_id}" in said
    assert "1 runs: 1 completed\n" in said
    assert len(read_record(item.directory).attempts) == 2
    assert (results().figures / "small" / "comparison.svg").exists()
