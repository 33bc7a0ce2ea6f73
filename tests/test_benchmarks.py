"""What the texts quote of the benchmarks is what their stored results say."""

import json
import re
import time
from pathlib import Path

import pytest

from benchmarks import interleaved, make_sizes, report
from ddl_tools.analysis import estimates
from ddl_tools.analysis.figures.advice import EXAMPLE
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.advise import advise

RESULTS = sorted(interleaved.RESULTS.glob("*.json"))


def windows(wall: list[float], cpu: list[float]) -> list[interleaved.Took]:
    return [interleaved.Took(*pair) for pair in zip(wall, cpu, strict=True)]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_no_stored_result_comes_from_a_dirty_tree(path) -> None:
    assert json.loads(path.read_text())["provenance"]["git_dirty"] is False


def test_downloads_are_the_files_that_pip_names(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.whl"
    wheel.write_bytes(bytes(1000))
    lines = ["Collecting a", "  Downloading a-1.whl (1.5 MB)", "  Using cached b-1.whl (2 kB)"]
    log = "\n".join([*lines, f"Processing {wheel}", ""])
    assert make_sizes.downloaded(log) == 1_503_000


def test_costs_that_nobody_has_measured_are_named(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert (
        "| `make env` | not measured | not measured | not measured in `.venv/` |" in report.costs()
    )


def test_the_table_of_options_has_the_numbers_of_the_command(tmp_path: Path) -> None:
    found = advise(EXAMPLE, Tree(tmp_path)).options
    lines = report.advice().splitlines()
    for one in found:
        if (one.candidate.spec.strategy, one.candidate.spec.loader) == ("ddp", "dali_cpu"):
            cells = f"| {one.ranks} | {one.deadline} | {one.node_hours} | {one.accuracy} |"
            assert any(line.startswith(cells) for line in lines)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_stored_ratios_follow_from_the_stored_windows(path) -> None:
    content = json.loads(path.read_text())
    for row in content.get("ratios", []):
        of_case = content["windows_s"][row["case"]] if "case" in row else content["windows_s"]
        took = {name: windows(**of_case[name]) for name in (row["of"], row["to"])}
        again = interleaved.ratio(took, row["of"], row["to"])
        assert again["n"] == row["n"]
        for clock in interleaved.CLOCKS:
            assert again[clock] == pytest.approx(row[clock], rel=1e-3)


def test_works_are_interleaved_forth_and_back() -> None:
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in "ABC"}
    took = interleaved.interleave(works, minutes=0)
    assert "".join(order) == "ABCCBABCA"  # the first round does not count
    assert {name: len(rounds) for name, rounds in took.items()} == {"A": 2, "B": 2, "C": 2}
    assert len(interleaved.interleave(works, minutes=0, least=8)["A"]) == 8


def test_ratio_is_of_throughputs_and_pairs_cancel_a_drift() -> None:
    drift = [1.0, 3.0, 0.5, 2.0]
    took = {
        "half as fast": windows([2 * one for one in drift], [4.0, 4.1, 3.9, 4.0]),
        "base": windows(drift, [1.0, 1.0, 1.0, 1.0]),
    }
    row = interleaved.ratio(took, "half as fast", "base")
    assert row["wall"] == pytest.approx({"ratio": 0.5, "low": 0.5, "high": 0.5})
    assert row["cpu"]["low"] < 0.25 < row["cpu"]["high"]
    assert row["cpu"]["high"] - row["cpu"]["low"] < 0.02


def test_a_dirty_tree_stores_nothing(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(interleaved, "RESULTS", tmp_path)
    monkeypatch.setattr(interleaved, "provenance", lambda: {"git_dirty": True})
    assert interleaved.stored("any", lambda: {"value": 1})["value"] == 1
    assert not list(tmp_path.iterdir())
    assert "not stored" in capsys.readouterr().out
    monkeypatch.setattr(interleaved, "provenance", lambda: {"git_dirty": False})
    interleaved.stored("any", lambda: {"value": 1})
    assert json.loads((tmp_path / "any.json").read_text())["value"] == 1


def test_all_blocks_are_used_and_known() -> None:
    text = "".join(page.read_text() for page in report.BLOCKS.pages)
    assert set(re.findall(r"<!-- results: (\w+) -->", text)) == {*report.TEXTS}


def test_scripts_report_with_at_most_three_lines_more(tmp_path: Path, monkeypatch) -> None:
    from benchmarks import own_scripts

    monkeypatch.setattr(own_scripts, "FOLDER", tmp_path)
    monkeypatch.setattr(own_scripts, "published", lambda folder: None)
    _, *loops = own_scripts.scripts(tmp_path)  # the first one is not in this repository
    for one in loops:
        assert len(one.change()) <= 3
        reporting = one.reporting().read_text()
        compile(reporting, one.name, "exec")
        kept = [line for line in reporting.splitlines() if f"+{line}" not in one.change()]
        assert kept == one.file.read_text().splitlines()
    too_much = own_scripts.Script("too much", loops[0].words, {1: ("pass",) * 4})
    with pytest.raises(SystemExit, match="more than 3 added lines"):
        too_much.change()


def test_a_published_script_that_is_another_one_is_not_run(tmp_path: Path) -> None:
    from benchmarks import own_scripts

    for name in own_scripts.PUBLISHED:
        (tmp_path / name).write_text("print('other')")
    with pytest.raises(SystemExit, match=r"is not the file of torchvision 0\.21\.0"):
        own_scripts.published(tmp_path)


def test_clocks_of_scripts_are_read_alike() -> None:
    from benchmarks.own_scripts import CLOCK

    theirs = "Epoch: [0]  [ 40/1600]  eta: 0:03:51  lr: 0.025  loss: 1.23 (2.05)  time: 0.1473"
    for line in (theirs, "[40] time: 0.1473"):
        assert CLOCK.match(line).groups() == ("40", "0.1473")


def test_scripts_of_known_rates_keep_them() -> None:
    """The mean of a start is drawn around the known rate, by 1 %."""
    import subprocess
    import sys

    from benchmarks.known_rates import SCRIPT

    words = [sys.executable, str(SCRIPT), "sleep", "0.02", "100", "5", "each"]
    begun, images = 0.0, 0
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if begun:
                images += json.loads(line)["images"]
            begun = begun or time.monotonic()
            if images > 10_000:
                break
        process.kill()
    assert images / (time.monotonic() - begun) == pytest.approx(5000, rel=0.1)


def test_the_ratio_to_the_own_clock_follows_from_the_stored_rates() -> None:
    path = interleaved.RESULTS / "own_scripts.json"
    for one in json.loads(path.read_text())["scripts"]:
        rates = one["images_per_s"]
        again = estimates.paired_ratio(rates["measured"], rates["own_clock"])
        assert interleaved.interval(again) == pytest.approx(one["to_own_clock"])


class Batches(list):
    def set_epoch(self, epoch: int) -> None:
        pass


@pytest.mark.filterwarnings("ignore")
def test_loops_of_others_do_the_same_work() -> None:
    """With PYTHONPATH=build/benchmarks: they are in no environment of the project."""
    pytest.importorskip("lightning", reason="benchmarks/README.md says how to have it")
    pytest.importorskip("accelerate")
    import torch

    from benchmarks import frameworks

    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batches = Batches([(torch.randn(3, 2), torch.tensor([0, 1, 0]))] * 4)
    loops = {"bare": frameworks.bare(network, optimizer, batches)}
    loops |= frameworks.beside(network, optimizer, batches)
    assert len(loops) == 4
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    ends = []
    for epoch in loops.values():
        network.load_state_dict(start)
        epoch()
        ends.append(network.weight.detach().clone())
    assert all(torch.equal(end, ends[0]) for end in ends)
    assert not torch.equal(ends[0], start["weight"])


def test_bare_loop_updates_once_for_many_micro_batches() -> None:
    import torch

    from benchmarks import frameworks

    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    batch = (torch.ones(1, 2), torch.zeros(1, dtype=torch.long))
    frameworks.bare(network, optimizer, Batches([batch] * 6), accumulation=3)()
    assert len(steps) == 2
    frameworks.bare(network, optimizer, Batches([batch] * 6))()
    assert len(steps) == 8
