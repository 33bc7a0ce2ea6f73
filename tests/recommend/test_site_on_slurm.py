"""A search as a job of a real SLURM, on one of its emulated nodes."""

import re
from pathlib import Path

import pytest

from ddl_tools.emulation.local_slurm import EmulatedSlurm
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.records.ledger import Entry, ledger, read_study
from ddl_tools.records.paths import results
from ddl_tools.records.run import read_epochs
from ddl_tools.study import Study
from tests.launch.running import ddl, two_ranks, wait_for
from tests.pictures import write_pictures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.notebook,
    pytest.mark.slurm,
    pytest.mark.alone,
    pytest.mark.extended,
    two_ranks,
    pytest.mark.timeout(900),
]
MINUTES = 2
PATIENCE_S = 60 * MINUTES + 240


def runs() -> list[Entry]:
    """Return the runs of the only search."""
    (name,) = (one for one in results().studies()
               if one.startswith("recommend_") and not one.endswith("_parts"))  # fmt: skip
    study = read_study(name, results())
    return ledger(study, results()) if study else []


def test_a_job_searches_on_its_node(tmp_path: Path, localtest: EmulatedSlurm) -> None:
    images = write_pictures(tmp_path / "images", 128, 8)
    asked = ("--model", "resnet8", "--data", images, "--image-size", 32, "--minutes", MINUTES)
    words = ("recommend", *asked, "--workers", 2, "--site", "localtest")
    (job,) = re.findall(r"^submitted: job (\d+)$", ddl(*words, status=0).output, re.MULTILINE)
    assert f"job {job}, submitted " in ddl(*words, status=0).output
    wait_for(lambda: job not in (slurm_cli.queue() or {}), "the job's end", PATIENCE_S)
    answer = ddl(*words, status=0).output
    assert re.search(r"^use +\S.*, \d+ ranks?", answer, re.MULTILINE)
    (nodes,) = re.findall(r"(\S+_nodes\.yaml)", answer)
    assert {one.nodes for one in Study.load(Path(nodes)).expand()} == {1, 2, 4}
    # A local search: its ranks are no steps, and their epochs alternate.
    completed = [item for item in runs() if item.state == "completed"]
    assert len(completed) > 1
    assert all(item.job_id is None for item in completed)
    assert all(read_epochs(item.directory)[-1].interleave for item in completed)
