"""The demo of `make cluster-demo`: stopped in the middle, it goes on when called again."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ddl_core.cli.cluster_demo import STUDY, demo
from ddl_core.launch.plan import find_study
from ddl_core.launch.slurm.emulated import EmulatedSlurm
from ddl_core.records.ledger import ledger
from ddl_core.records.paths import RunFiles, results
from ddl_core.records.run import read_record
from ddl_core.spec.study import Study
from tests.launch.fixtures import Start
from tests.launch.running import study_file, wait_for

PROGRAM = ("-m", "ddl_core.cli.cluster_demo")


def test_a_dry_run_shows_the_runs_and_starts_nothing() -> None:
    shown = CliRunner().invoke(demo, ["--dry-run"])
    assert shown.exit_code == 0, shown.output
    for item in ledger(find_study(STUDY), results()):
        assert f"missing     {item.spec.run_id}\n" in shown.output
    assert not results().root.exists()


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.slurm
@pytest.mark.timeout(600)
def test_a_stopped_demo_goes_on(cluster: EmulatedSlurm, start: Start, tmp_path: Path) -> None:
    path = study_file(tmp_path, train_images=160, epochs=4, checkpoint_every=1)
    (item,) = ledger(Study.load(path), results())
    first = start(*PROGRAM, str(path))
    wait_for(RunFiles(item.directory).checkpoint.exists, "the first checkpoint", seconds=240)
    first.terminate()
    said, error = first.communicate(timeout=120)
    assert first.returncode == 130, error
    assert "go on with: make cluster-demo" in error
    assert f"running     {item.spec.run_id}" in said
    assert read_record(item.directory).status == "failed"  # its job was given time to say so

    second = start(*PROGRAM, str(path))
    said, error = second.communicate(timeout=300)
    assert second.returncode == 0, error
    assert f"completed   {item.spec.run_id}" in said
    assert "1 runs: 1 completed\n" in said
    assert len(read_record(item.directory).attempts) == 2
    assert (results().figures / "throughput_vs_workers.svg").exists()
