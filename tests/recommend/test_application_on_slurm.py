"""The tutorial from nothing to the application, followed on a real SLURM of emulated nodes."""

import re
from pathlib import Path

import pytest
import yaml

from ddl_tools.emulation.local_slurm import EmulatedSlurm
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.records.ledger import Entry, ledger, read_study
from ddl_tools.records.paths import results
from ddl_tools.records.run import read_epochs
from tests import pages
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
    pytest.mark.timeout(1500),
]
PAGE = "tutorials/application.md"
# A search of a small network; emulated nodes have no project to bill.
SMALLER = {"resnet50": "resnet8", "SITE": "localtest", "PROJECT": "", "9": "15"}
MINUTES = "2"
PATIENCE_S = 600


def measured(name: str) -> list[Entry]:
    """Return the completed runs of a search."""
    study = read_study(name, results())
    return [one for one in ledger(study, results()) if one.state == "completed"] if study else []


def test_the_tutorial_ends_with_the_page(tmp_path: Path, localtest: EmulatedSlurm) -> None:
    words = {"DIR": str(write_pictures(tmp_path / "images", 128, 8)), **SMALLER}

    def follow(call: list[str]) -> str:
        """Call a command of the page, its places filled; return what it said."""
        found = []
        for word in call:
            word = re.sub(r"SEARCH", words.get("SEARCH", ""), word)
            word = word.replace("results/", f"{results().root}/", 1)
            word = str(results().root) if word == "results" else words.get(word, word)
            found += [word] if word else []
        found = [word for word in found if word != "--account"]
        return ddl(*found, status=0).output

    def empty() -> bool:
        return not slurm_cli.queue()

    doctor, cost, search, submit, status, proposal = pages.commands(PAGE)
    assert follow(doctor)
    small = ["--image-size", "32", "--workers", "2", "--minutes", MINUTES]
    assert "node-hours" in follow([*cost, *small])
    (job,) = re.findall(r"^submitted: job (\d+)$", follow([*search, *small]), re.MULTILINE)
    assert f"job {job}, submitted " in follow([*search, *small])
    wait_for(empty, "the end of the search", PATIENCE_S)
    answer = follow([*search, *small])
    assert re.search(r"^use +\S.*, \d+ ranks?", answer, re.MULTILINE)
    (words["SEARCH"],) = re.findall(r"(\w+)_nodes\.yaml", answer)
    runs = measured(words["SEARCH"])
    # A local search: its ranks are no steps, and their epochs alternate.
    assert len(runs) > 1
    assert all(one.job_id is None for one in runs)
    assert all(read_epochs(one.directory)[-1].interleave for one in runs)
    study = results().root / "recommend" / f"{words['SEARCH']}_nodes.yaml"
    content = yaml.safe_load(study.read_text())
    content["base"]["gpus_per_node"] = 1  # as the page says of this site
    study.write_text(yaml.safe_dump(content))
    follow(submit)
    wait_for(empty, "the end of nine jobs", PATIENCE_S)
    assert "9 completed" in follow(status)
    said = follow(proposal)
    assert "SYNTHETIC" not in said
    folder = results().root / "proposal" / f"{words['SEARCH']}_nodes"
    page = (folder / "proposal.md").read_text()
    assert page.index("ON PROCESSORS") < page.index("## Scaling")
    rows = re.findall(r"^\| (\d+) \| \d+ \| \d+ \| [\d.,]+ .*\| (3|forecast) \|$", page, re.M)
    assert rows == [("1", "3"), ("2", "3"), ("4", "3"), ("8", "forecast"), ("16", "forecast")]
    assert (folder / "proposal.pdf").read_bytes().startswith(b"%PDF")
