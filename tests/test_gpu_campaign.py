"""`make gpu`, rehearsed on the CPU: its checks pass, and can fail; its report tells all runs."""

import ast
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as campaign
from benchmarks.gpu import checks, costs, overhead, report
from ddl_core.config import RunSpec
from ddl_core.errors import STOPPED
from ddl_core.timing import Clock
from ddl_tools.launch.slurm import slurm_cli
from ddl_tools.launch.study import find_study
from ddl_tools.records.archive import publish_file
from ddl_tools.records.ledger import plan, write_study
from ddl_tools.records.paths import PROJECT, Tree
from ddl_tools.study import Study
from tests.commands import output, run
from tests.launch.running import wait_for
from tests.pictures import write_pictures

SCOPES = (ast.FunctionDef, ast.ClassDef)


TRAININGS = (checks.same_as_the_cpu, checks.resumed_as_undisturbed, checks.overflow_is_skipped)
RANKS = (pytest.mark.slow, pytest.mark.multiprocess)


@pytest.mark.parametrize(
    "check",
    [
        *(pytest.param(one, marks=pytest.mark.numeric) for one in TRAININGS),
        pytest.param(checks.stopped_run_goes_on, marks=RANKS),
        pytest.param(checks.strategies_train_as_one_process, marks=RANKS),
        pytest.param(checks.clock_finds_planted_time, marks=pytest.mark.alone),
    ],
)
def test_checks_pass_on_the_cpu(check) -> None:
    assert checks.outcome_of(check, "cpu")[0] == "ok"


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_rank_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spec_of = checks.spec_of

    def faster(device: str, **fields: Any) -> RunSpec:
        if fields.get("gpus_per_node") == 2:
            fields["base_lr"] *= 1.2
        return spec_of(device, **fields)

    monkeypatch.setattr(checks, "spec_of", faster)
    state, text = checks.outcome_of(checks.strategies_train_as_one_process, "cpu")
    assert state == "WRONG", text


def test_what_a_cpu_cannot_show_is_skipped_and_says_why() -> None:
    state, text = checks.outcome_of(checks.nothing_waits_for_the_device, "cpu")
    assert (state, text) == ("skipped", "torch can tell on a GPU only")


def test_another_update_on_the_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made, number = checks.Training.__init__, iter(range(3))

    def disturbed(training: checks.Training, *arguments: Any) -> None:
        made(training, *arguments)
        if next(number) == 0:
            with torch.no_grad():
                next(training.trainee.network.parameters()).mul_(1.1)

    monkeypatch.setattr(checks.Training, "__init__", disturbed)
    assert checks.outcome_of(checks.same_as_the_cpu, "cpu")[0] == "WRONG"


def test_a_checkpoint_that_is_not_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.checkpoint, "load", lambda path, trainee: 1)
    assert checks.outcome_of(checks.resumed_as_undisturbed, "cpu")[0] == "WRONG"


def test_an_overflow_that_is_not_skipped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "step", lambda self, optimizer: optimizer.step())
    assert checks.outcome_of(checks.overflow_is_skipped, "cpu")[0] == "WRONG"


@pytest.mark.alone
def test_a_clock_that_forgets_a_mark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "gradients_averaged", lambda self: self._mark("compute"))
    assert checks.outcome_of(checks.clock_finds_planted_time, "cpu")[0] == "WRONG"


def test_a_crash_is_a_finding() -> None:
    def check(device: str) -> str:
        raise RuntimeError(f"no kernel for {device}")

    assert checks.outcome_of(check, "cpu") == ("WRONG", "RuntimeError: no kernel for cpu")


def test_every_part_is_a_study_or_a_work_and_all_take_the_time_there_is() -> None:
    studies = [part for part in campaign.PARTS if part not in campaign.WORK]
    assert {find_study(part).name for part in studies} == set(studies)
    assert sum(campaign.PARTS.values()) == pytest.approx(1)


def test_the_report_names_each_run_and_why_it_is_missing(tmp_path: Path) -> None:
    study = report.wanted("gpu_smoke", "cpu")
    tree = Tree(tmp_path)
    entries = plan(study, tree)
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "checks.log").write_text("ok       a_check: seen\n")
    log = f"epoch 1/8\n{report.ANSWER}proven: channels last\n"
    (tmp_path / "gpu" / "recommend.log").write_text(log)
    parts = ["checks", "recommend", "gpu_smoke"]
    text = report.write(tmp_path / "gpu", tree, parts, "cpu").read_text()
    assert "## recommend\n\n```\nproven: channels last\n```" in text
    assert "a_check: seen" in text
    assert f"{len(entries)} runs: {len(entries)} planned" in text
    assert all(item.spec.run_id in text for item in entries)


def test_the_cost_of_each_part_includes_compilation(tmp_path: Path) -> None:
    limits = costs.limits(campaign.PARTS, list(campaign.PARTS), 30, "cuda")
    rows = {row.part: row for row in costs.costs(limits, Tree(tmp_path), "cuda")}
    assert list(rows) == list(campaign.PARTS)
    one_gpu = rows["one_gpu"]
    assert (one_gpu.runs, one_gpu.compiled) == (15, 3)  # five configurations, three starts
    assert one_gpu.needed == pytest.approx((15 * 40 + 3 * 80) / 60)
    assert one_gpu.most == pytest.approx(campaign.PARTS["one_gpu"] * 30)
    assert rows["checks"].needed is None
    text = costs.table([*rows.values()], "cuda")
    total = re.search(r"^in all +(\d+) +(\d+) +([\d.]+) +([\d.]+)$", text, re.MULTILINE)
    assert total
    assert int(total[1]) == sum(row.runs or 0 for row in rows.values())
    assert float(total[4]) == pytest.approx(30, abs=0.2)


def test_parts_that_do_not_fit_are_named_with_what_they_need(tmp_path: Path) -> None:
    parts = ["checks", "gpu_smoke", "one_gpu"]
    limits = costs.limits(campaign.SHARES, parts, 30, "cuda")
    text = campaign.cost(limits, Tree(tmp_path), "cuda")
    (line,) = re.findall("^Not all runs fit: (.*)$", text, re.MULTILINE)
    assert "one_gpu (needs 14.0 min)" in line
    assert "gpu_smoke" not in line
    assert re.search(r"^Only when named: accuracy \(needs 36.0 min\)", text, re.MULTILINE)


def test_all_parts_are_made_but_those_that_have_to_be_named() -> None:
    assert set(campaign.default_parts("cuda", 1)) == {*campaign.PARTS} - {"two_gpus"}
    assert set(campaign.default_parts("cuda", 4)) == {*campaign.PARTS}
    assert "accuracy" not in campaign.PARTS
    assert overhead.PAIRS["cuda"] >= 8
    assert find_study("one_gpu").repeats >= 3


def test_a_part_that_needs_a_gpu_is_not_rehearsed(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "one_gpu")
    assert done.returncode == 2
    assert "one_gpu needs a GPU" in done.stderr


def test_the_study_of_a_search_goes_into_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    names = [one.name for one in campaign.studies(tree, "cpu")]  # no images, so no search
    write_study(Study(name="recommend_x", question="?", base={}, repeats=1), tree)
    monkeypatch.setattr(campaign, "search", lambda *_: SimpleNamespace(name="recommend_x"))
    assert [one.name for one in campaign.studies(tree, "cpu")] == [*names, "recommend_x"]


def test_our_dali_loader_stands_beside_dalis_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvidia.dali")
    from benchmarks.loaders import on_device

    found = on_device(write_pictures(tmp_path / "images", 64, 8), "cpu", minutes=0)
    assert [row["n"] for row in found["ratios"]] == [2, 2]
    text = capsys.readouterr().out
    assert re.search(r"^dali_cpu, folder +\d+ images/s$", text, re.MULTILINE)
    assert "dali_cpu, tfrecord / DALI shuffling, tfrecord: " in text


def test_a_short_campaign_leaves_time_to_compile() -> None:
    limits = costs.limits(campaign.PARTS, ["overhead", "one_gpu_loaders"], 5, "cuda")
    assert 60 * limits["overhead"] > costs.COMPILE_S + overhead.PAIRS["cuda"]


def test_a_dry_run_says_the_cost_and_does_nothing(tmp_path: Path) -> None:
    asked = ("--device", "cpu", "--dry-run", "--results", tmp_path / "results")
    text = output(sys.executable, "-m", "benchmarks.gpu", *asked)
    assert re.search(r"^gpu_smoke +36 +0 ", text, re.MULTILINE)
    assert not (tmp_path / "results").exists()


def test_without_a_complete_run_there_is_no_file(tmp_path: Path) -> None:
    text = campaign.write_file(tmp_path / campaign.FILE, Tree(tmp_path), "cpu", "report")
    assert text == "no file to publish: no run is complete"
    assert not (tmp_path / campaign.FILE).exists()


def test_a_bare_loop_stands_beside_ours() -> None:
    assert "train_one_epoch / bare loop: " in overhead.measure("cpu", minutes=0)


def test_a_stopped_campaign_reports_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "_child", stopped)
    asked = Namespace(results=tmp_path, name="", parts=["checks", "gpu_smoke"], device="cpu")
    asked.minutes, asked.dry_run = 1, False
    assert campaign.campaign(asked) == STOPPED
    assert "36 runs: 36 missing" in (tmp_path / "gpu" / "report.md").read_text()


def on_site(folder: Path, *words: Any) -> str:
    asked = ("--site", "generic", "--minutes", 30, "--results", folder)
    return output(sys.executable, "-m", "benchmarks.gpu", *asked, *words)


def test_a_job_of_a_site_makes_the_campaign(tmp_path: Path, sbatch: Path) -> None:
    text = on_site(tmp_path, "--dry-run")
    assert re.search(r"^two_gpus ", text, re.MULTILINE)  # of the site's node, not of this machine
    assert "cost: at most 0.67 node-hours, one node for 00:40:0" in text
    assert "-m benchmarks.gpu checks gpu_smoke " in text
    assert not sbatch.exists()
    assert "submitted: job 1\n" in on_site(tmp_path)
    (state,) = (tmp_path / "gpu").glob("*/*.job.json")
    state.with_name("report.md").write_text("what it found")
    state.with_name("ddl-gpu.zip").touch()
    text = on_site(tmp_path)
    assert "what it found" in text
    assert f"ddl study publish {state.with_name('ddl-gpu.zip')}" in text


def test_a_site_without_gpus_only_rehearses(tmp_path: Path) -> None:
    words = ("--site", "localtest", "--results", tmp_path, "--dry-run")
    done = run(sys.executable, "-m", "benchmarks.gpu", *words)
    assert done.returncode == 1
    assert "has no GPUs; choose another --site, or rehearse with --device cpu" in done.stderr


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("localtest")
def test_a_job_on_its_node_ends_with_the_report(tmp_path: Path) -> None:
    asked = ("--site", "localtest", "--device", "cpu", "--results", tmp_path, "overhead")
    command = (sys.executable, "-m", "benchmarks.gpu", *asked)
    assert "submitted: job" in output(*command)
    wait_for(lambda: not slurm_cli.queue(), "the job's end", 240)
    assert "train_one_epoch / bare loop: " in output(*command)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_the_whole_campaign_is_rehearsed_on_the_cpu(tmp_path: Path) -> None:
    asked = ("--device", "cpu", "--minutes", 10, "--results", tmp_path)
    text = output(sys.executable, "-m", "benchmarks.gpu", *asked)
    file = tmp_path / "gpu" / campaign.FILE
    assert f"the file to send: {file}\n" in text
    done = publish_file(file, Tree(tmp_path / "fresh"))
    assert {name: len(one.new) for name, one in done.items()} == {"gpu_smoke_cpu": 36}
    report = (tmp_path / "gpu" / "report.md").read_text()
    assert "WRONG" not in report
    assert "36 runs: 36 completed" in report
    assert "same weights under all strategies: 2 of 2 groups" in report
    for part in campaign.REHEARSED:
        assert f"## {part}" in report


def functions_with_a_gpu_branch() -> set[str]:
    """Return the functions of both packages that compare something with ``"cuda"``."""
    found = set()

    def search(node: ast.AST, path: Path, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = (*names, child.name) if isinstance(child, SCOPES) else names
            if isinstance(child, ast.Compare) and any(
                isinstance(one, ast.Constant) and one.value == "cuda"
                for one in (child.left, *child.comparators)
            ):
                found.add(f"{path.relative_to(PROJECT)}:{'.'.join(inner)}")
            search(child, path, inner)

    for package in ("ddl_core", "ddl_tools"):
        for path in sorted((PROJECT / package).rglob("*.py")):
            search(ast.parse(path.read_text()), path, ())
    return found


def test_the_page_of_gpu_branches_lists_all() -> None:
    text = (PROJECT / "docs" / "contributing" / "gpu-branches.md").read_text()
    assert set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)) == functions_with_a_gpu_branch()
