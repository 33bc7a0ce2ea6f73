"""What the texts quote of the benchmarks is what their stored results say."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import interleaved, report
from ddl_tools.analysis.figures.advice import EXAMPLE
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.advise import advise

RESULTS = sorted(interleaved.RESULTS.glob("*.json"))


def windows(wall: list[float], cpu: list[float]) -> list[interleaved.Took]:
    return [interleaved.Took(*pair) for pair in zip(wall, cpu, strict=True)]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_no_stored_result_comes_from_a_dirty_tree(path) -> None:
    assert json.loads(path.read_text())["provenance"]["git_dirty"] is False


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
