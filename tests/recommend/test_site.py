"""The search as SLURM jobs: what each call submits, what it may cost, and the last answer.

SLURM's programs are stand-ins, and made-up records take the place of jobs.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ddl_core.config import RunSpec
from ddl_core.registry import LOADERS, STRATEGIES
from ddl_tools.launch.slurm.script import Options, block_name
from ddl_tools.recommend import candidates
from ddl_tools.recommend.candidates import Request
from ddl_tools.recommend.site import SiteSearch
from ddl_tools.records.ledger import Entry, ledger, read_study
from ddl_tools.records.paths import SITES, RunFiles, results
from ddl_tools.records.run import Attempt, Failure, append_epoch, read_record, write_record
from ddl_tools.study import Study
from tests.analysis.drawn import draw_only
from tests.launch.running import change, ddl, line
from tests.launch.stand_ins import StandIns
from tests.pictures import write_pictures

RATES = {"turbo": 1500, "fsdp": 950, "ddp": 1000}
BROKEN = {"status": "failed", "error": Failure.of("DataError", "its own")}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave three configurations: the baseline, another loader and another strategy."""
    draw_only(monkeypatch, "comparison")
    others = [name for name in (*LOADERS, *STRATEGIES) if name not in ("turbo", "fsdp")]
    monkeypatch.setattr(candidates, "NO_CANDIDATES", others)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "images", 96, 8)


def recommend(images: Path, *words: Any) -> Result:
    asked = ("--model", "resnet8", "--data", images, "--image-size", 32, "--site", "localtest")
    return ddl("recommend", *asked, *words)


def runs() -> list[Entry]:
    """Return the runs of the only study."""
    (name,) = results().studies()
    study = read_study(name, results())
    return ledger(study, results())


def complete(item: Entry, rate: float) -> None:
    """Let a run be completed in a job of its block, with this many images per second."""
    spec, record = item.spec, read_record(item.directory)
    for epoch in range(spec.epochs):
        samples = round(2 * rate)  # in the 2 s of a line
        values = {"samples": samples, "throughput_samples_per_s": samples / 2}
        append_epoch(item.directory, line(epoch, **values))
    block = f"{block_name(record.study, spec)}-job{item.job_id}.0"
    attempt = Attempt(started_utc=record.created_utc, status="completed", block=block, place=0)
    changes = {"status": "completed", "world_size": spec.world_size, "attempts": [attempt]}
    write_record(item.directory, record.model_copy(update=changes))


def rate_of(spec: RunSpec) -> float:
    """Return the rate of a run: its serial part is 10 % of one node's time, its noise 1 %."""
    name = spec.loader if spec.loader in RATES else spec.strategy
    scaling = spec.nodes / (1 + 0.1 * (spec.nodes - 1))
    return RATES[name] * scaling * (1 + 0.01 * (-1) ** (spec.repeat + len(name) + spec.nodes))


def complete_all() -> list[Entry]:
    """Let the jobs of all runs that wait be completed; return these runs."""
    waiting = [item for item in runs() if item.state == "submitted"]
    for item in waiting:
        complete(item, rate_of(item.spec))
    return waiting


def lines_of(said: Result) -> dict[str, str]:
    assert said.exit_code == 0, said.output
    return dict(re.findall(r"^(\w+(?: next)?)  +(.*)$", said.output, re.M))


def test_a_dry_run_shows_jobs_and_costs_and_submits_nothing(images: Path, sbatch: Path) -> None:
    said = recommend(images, "--dry-run")
    assert said.exit_code == 0, said.output
    # Three configurations, two starts, 1 + 2 + 4 nodes, five minutes.
    assert re.search(r"total +18 +0 +6 +3.5\n", said.output)
    assert len(re.findall(r"^ddl-recommend_.*: 3 runs, at most 00:15:00$", said.output, re.M)) == 6
    assert "nothing was submitted" in said.output
    assert "packages: those of this login node" in said.output
    assert not sbatch.exists()
    assert not results().root.exists()


def test_the_cost_is_shown_and_limited(images: Path, sbatch: Path) -> None:
    refused = recommend(images, "--max-node-hours", "1")
    assert refused.exit_code == 1
    assert re.search(r"total .* 2.3\n", refused.output)
    assert "2.3 node-hours, more than --max-node-hours 1; allow at least 2.4" in said(refused)
    assert not sbatch.exists()
    few = recommend(images, "--max-node-hours", "2.4")
    assert few.exit_code == 0, few.output
    assert len({(item.spec.strategy, item.spec.loader) for item in runs()}) == 2


def test_a_job_above_the_limit_of_the_site_names_options_that_exist(
    images: Path, sbatch: Path, tmp_path: Path
) -> None:
    site = tmp_path / "short.toml"
    site.write_text('description = "x"\ntime_max = "00:14:00"\n')
    refused = ddl("recommend", "--model", "resnet8", "--data", images, "--site", site)
    assert refused.exit_code == 1
    assert "3 runs of 00:05:00 each), but a job of this site may last 00:14:00" in said(refused)
    assert "lower --minutes, or --max-node-hours" in said(refused)
    assert "--by run" not in said(refused)
    assert not sbatch.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-node-hours", "3"), "--max-node-hours are of SLURM jobs; name a --site"),
        (("--site", "localtest", "--max-node-hours", "inf"), "inf is not a finite number"),
        (("--site", "localtest", "--max-node-hours", "nan"), "nan is not a finite number"),
        (("--minutes", "inf"), "inf is not a finite number"),
    ],
)
def test_a_limit_that_limits_nothing_is_refused(words: tuple[str, ...], told: str) -> None:
    refused = ddl("recommend", *words, status=2)
    assert told in said(refused)


def said(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.mark.usefixtures("sbatch")
def test_a_second_call_submits_nothing_twice(images: Path, stand_ins: StandIns) -> None:
    assert "submitted: 6 jobs, 1, 2, 3, 4, 5, 6" in recommend(images).output
    items = runs()
    assert {item.spec.nodes for item in items} == {1, 2, 4}
    names = {item.job_id: block_name(item.directory.parent.name, item.spec) for item in items}
    queue = [f"{job}|ddl-{name}|PENDING|Priority" for job, name in names.items()]
    stand_ins.add("squeue", "\n".join(queue) + "\n")
    again = recommend(images)
    assert "state: 18 runs: 18 submitted" in again.output
    assert "call again" in again.output
    # A job that is gone leaves runs to submit again.
    stand_ins.add("squeue", "\n".join(queue[1:]) + "\n")
    again = recommend(images)
    assert "state: 18 runs: 3 interrupted, 15 submitted" in again.output
    assert "submitted: 1 job, 7" in again.output


def test_two_rounds_end_with_the_fastest_and_a_forecast(images: Path, sbatch: Path) -> None:
    recommend(images)
    assert len(complete_all()) == 18
    second = recommend(images)
    assert "state: 18 runs: 18 completed" in second.output
    (path,) = re.findall(r"ddl study status (\S+)", second.output)
    assert len(Study.load(Path(path)).expand()) == 18 + 6
    left = complete_all()
    # The test drops what is slower than the loader turbo.
    assert {(item.spec.loader, item.spec.repeat) for item in left} == {("turbo", 2), ("turbo", 3)}
    answer = recommend(images)
    lines = lines_of(answer)
    assert "turbo" in lines["use"]
    assert lines["use"].endswith("on 4 nodes")
    assert "PyTorch-FSDP" in lines["slower"]
    for nodes, rate in ((1, 1500), (2, 2727), (4, 4615)):
        found = re.search(rf"{nodes} nodes? ([\d,.]+) \[([\d,.]+), ([\d,.]+)\]", lines["sizes"])
        middle, low, high = (float(one.replace(",", "")) for one in found.groups())
        assert low < rate < high
        assert middle == pytest.approx(rate, rel=0.02)
    assert "4 starts, 95 % interval" in lines["speed"]
    assert "1.5 times the baseline" in lines["speed"]
    forecast = {int(nodes): int(rate.replace(",", "")) for nodes, rate
                in re.findall(r"(\d+) nodes ([\d,]+) \[", lines["larger"])}  # fmt: skip
    assert forecast == {8: pytest.approx(7059, rel=0.05), 16: pytest.approx(9600, rel=0.1)}
    assert lines["accuracy"].startswith("unknown: no training of 90 epochs")
    assert lines["start"].endswith("--site localtest")
    (path,) = re.findall(r"study submit (\S+\.yaml)", lines["start"])
    (run,) = Study.load(Path(path)).expand()
    assert (run.loader, run.nodes, run.epochs) == ("turbo", 4, 90)


def test_known_accuracy_is_told_at_its_batch(images: Path, sbatch: Path) -> None:
    asked = ("--max-node-hours", "2.4", "--epochs", "4", "--account", "a", "--partition", "p")
    recommend(images, *asked)
    complete_all()
    for item in runs():
        if item.spec.nodes == 4:
            append_epoch(item.directory, line(3, "eval", top1=0.5))
    damaged = results().study("other") / "one"
    damaged.mkdir(parents=True)
    RunFiles(damaged).record.write_text("{")
    # No node-hours are left for a second round.
    answer = recommend(images, *asked)
    lines = lines_of(answer)
    assert lines["accuracy"].startswith("batch 32 50 [49, 51] %")
    assert "2 starts, too few for an interval" in lines["speed"]
    assert lines["start"].endswith("--site localtest --account a --partition p")


def test_a_configuration_that_fails_is_named(images: Path, sbatch: Path) -> None:
    recommend(images)
    for item in runs():
        if item.spec.strategy == "fsdp":
            change(item, **BROKEN)
    complete_all()
    recommend(images)
    complete_all()
    lines = lines_of(recommend(images))
    assert re.search(r"failed: PyTorch-FSDP.* \(on 1 node: DataError: its own\)", lines["slower"])


def test_each_site_has_a_search_of_its_own(images: Path, tmp_path: Path) -> None:
    """Also copies of a site's file, which have its description and may have its name."""
    copies = [tmp_path / "copy.toml", tmp_path / "localtest.toml", tmp_path / "x/localtest.toml"]
    copies[-1].parent.mkdir()
    for copy in copies:
        copy.write_bytes((SITES / "localtest.toml").read_bytes())
    sites = ("localtest", str(SITES / "localtest.toml"), *map(str, copies))
    asked = Request("resnet8", images)
    named, path, *others = (
        SiteSearch(asked, results(), site, Options(), 10.0).name for site in sites
    )
    assert named == path
    assert len({named, *others}) == 1 + len(copies)


def test_where_all_fail_the_cause_is_said(images: Path, sbatch: Path) -> None:
    recommend(images)
    for item in runs():
        change(item, **BROKEN)
    refused = recommend(images)
    assert refused.exit_code == 1
    assert "no configuration ran on localtest; on 1 node: DataError: its own" in said(refused)


@pytest.mark.usefixtures("sbatch")
def test_a_site_that_cannot_be_used_is_an_error(images: Path) -> None:
    for site, message in (
        ("nowhere", "unknown site 'nowhere'; choose one of: frontier, generic"),
        ("juwels_booster", "name it with --account PROJECT"),
    ):
        refused = ddl("recommend", "--data", images, "--site", site)
        assert refused.exit_code == 1
        assert message in said(refused)
