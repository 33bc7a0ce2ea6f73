"""Searches for the fastest configuration of a script of the user's, whose rates are known."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_tools.cli.answers import Recommend
from ddl_tools.launch.interleave import HERE
from ddl_tools.recommend import plan
from ddl_tools.recommend.command import CommandAnswer, CommandRequest, CommandSearch, line_of
from ddl_tools.recommend.plan import Known, Verdict
from ddl_tools.recommend.search import study_of
from ddl_tools.records.ledger import write_study
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import read_epochs
from tests.launch.running import ddl

SCRIPT = """
    import argparse, json, os, sys, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int)
    batch = parser.parse_args().batch
    if batch == 13:
        sys.exit("13 images do not fit")
    if batch == 17:
        time.sleep(1000)
    while True:
        time.sleep(0.05 + 0.002 * batch)
        print(json.dumps({"images": batch}), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def command(folder: Path) -> Iterator[str]:
    """Return the command of a script in the current folder; batch 13 dies, and batch 17 hangs."""
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(plan, "DISTURBED", 1.0)  # other tests may be at work
        patch.setattr("ddl_tools.recommend.command.WINDOWS", 3)  # one that counts
        yield f"{sys.executable} train.py --batch {{batch}}"


def request(command: str, *batches: int, minutes: float = 10.0, **tried: str) -> CommandRequest:
    values = {"batch": [str(one) for one in batches]} if batches else {}
    return CommandRequest(
        command, {**values, **{name: text.split(",") for name, text in tried.items()}}, minutes
    )


def rate(batch: int) -> float:
    return batch / (0.05 + 0.002 * batch)


class Bench:
    """A bench of starts, each of whose configurations takes 20 s; `rates` by command."""

    def __init__(self, rates: Callable[[str], float], seconds: float) -> None:
        self.known, self.left_s, self._rates = Known(), seconds, rates
        self.blocks: list[list[str]] = []

    def cost_s(self, spec: RunSpec) -> float:
        return 20.0

    def block_s(self, block: list[RunSpec]) -> float:
        return 20.0 * len(block)

    def measure_parts(self, parts: list[object]) -> None:
        assert not parts

    def measure_block(self, block: list[RunSpec]) -> None:
        self.left_s -= self.block_s(block)
        self.blocks.append([one.command for one in block])
        for spec in block:
            value = self._rates(spec.command)
            if value:
                self.known.starts.setdefault(spec, {})[f"{len(self.blocks)}"] = value
            else:
                self.known.failed[spec] = "it died"


def test_all_combinations_are_tried_and_the_first_values_are_the_default() -> None:
    found = request("python t.py --b {b} --w {w}", b="1,2", w="3,4", gpus_per_node="1").space()
    assert found.default.command == "python t.py --b 1 --w 3"
    others = [f"python t.py --b {b} --w {w}" for b, w in ((1, 4), (2, 3), (2, 4))]
    assert [one.command for one in found.given] == others


def test_fields_of_a_start_may_be_tried_where_they_go_together() -> None:
    found = request("python t.py", strategy="single,torchrun", gpus_per_node="1,2").space()
    every = [(one.strategy, one.gpus_per_node) for one in (found.default, *found.given)]
    assert every == [("single", 1), ("torchrun", 1), ("torchrun", 2)]
    assert "it is one process" in found.missing[0]
    assert "torch.distributed.run" in line_of(found.given[0])


@pytest.mark.parametrize("name", ["precision", "loader", "seed", "epochs"])
def test_a_word_may_be_called_as_a_field_of_a_run(name: str) -> None:
    found = request(f"python t.py {{{name}}}", **{name: "7,8"}).space()
    assert found.default.command == "python t.py 7"


@pytest.mark.parametrize(
    ("command", "tried", "why"),
    [
        ("python t.py --b {b}", {}, r"--try b=32,64"),
        ("python t.py --b {b}", {"b": "1"}, "nothing to compare"),
        ("python t.py --b {b}", {"b": "1,1"}, "twice"),
        ("python t.py", {"b": "1,2"}, "the command has no {b}"),
        ("python t.py", {"loader": "native,synthetic"}, "the command has no {loader}"),
        ("python t.py", {"gpus_per_node": "1,many"}, "gpus_per_node"),
        ("", {"gpus_per_node": "1,2"}, "command"),
    ],
)
def test_values_that_a_command_does_not_see_are_refused(
    command: str, tried: dict[str, str], why: str
) -> None:
    with pytest.raises(SpecError, match=why):
        request(command, **tried).space()


def test_no_configuration_is_left_out_and_the_fastest_starts_again() -> None:
    space = request("t {b}", b=",".join(map(str, range(1, 13)))).space()
    bench = Bench(lambda command: {"t 5": 120, "t 11": 125, "t 7": 0}.get(command, 100), 720)
    plan.search(space, bench)
    first, second, *others = bench.blocks
    assert {*first, *second} == {f"t {b}" for b in range(1, 13)}
    assert len(first) == 1 + plan.RIVALS
    assert others
    assert {one for block in others for one in block} == {"t 1", "t 11", "t 5"}
    leader = plan.ranking(space, bench.known)[0]
    assert plan.verdict(bench.known.ratio(leader, space.default)) == Verdict.PROVEN


def test_where_all_others_fail_the_default_does_not_start_again() -> None:
    space = request("t {b}", b="1,2,3").space()
    bench = Bench(lambda command: 100 * (command == "t 1"), 720)
    plan.search(space, bench)
    assert len(bench.blocks) == 1
    assert plan.ranking(space, bench.known) == []


def test_a_default_that_fails_ends_the_search() -> None:
    space = request("t {b}", b="1,2").space()
    with pytest.raises(LaunchError, match=r"the default cannot run.*it died"):
        plan.search(space, Bench(lambda command: 100 * (command == "t 2"), 720))


def test_too_many_values_for_the_time_are_refused_before_anything_starts(tmp_path: Path) -> None:
    values, tree = ",".join(map(str, range(8))), Tree(tmp_path)
    with pytest.raises(SpecError, match="one start of each of 8 configurations") as refused:
        CommandSearch(request("t {b}", b=values, minutes=2), tree)
    (minutes,) = re.findall(r"allow --minutes (\d+)", str(refused.value))
    assert CommandSearch(request("t {b}", b=values, minutes=int(minutes)), tree)
    assert not [*tree.studies()]


def test_the_same_call_goes_on_and_a_changed_script_does_not(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    tree = Tree(tmp_path)
    names = [CommandSearch(request(command, 1, 2, minutes=one), tree).name for one in (5, 9)]
    assert names[0] == names[1] != CommandSearch(request(command, 2, 1), tree).name
    with (tmp_path / "train.py").open("a") as script:
        script.write("# changed\n")
    assert CommandSearch(request(command, 1, 2), tree).name != names[0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--batch", 3), "--try batch=VALUE"),
        (("--model", "resnet18"), "--model {model}"),
        (("--data", "."), "--data"),
        (("--site", "here"), "--site"),
        (("--try", "batch"), "names no values"),
        (("--try", "batch=3"), "is there twice"),
    ],
)
def test_options_without_a_meaning_for_a_command_are_refused(
    command: str, words: tuple[object, ...], why: str
) -> None:
    asked = ("--command", command, "--try", "batch=1,2", *words, "--dry-run")
    said = ddl("recommend", *asked)
    assert said.exit_code == 2
    assert why in said.output


def test_values_without_a_command_are_refused() -> None:
    said = ddl("recommend", "--try", "batch=1,2")
    assert said.exit_code == 2
    assert "--command" in said.output


def test_commands_are_shown_and_a_dry_run_starts_none(command: str, tmp_path: Path) -> None:
    asked = ("--command", command, "--try", "batch=10,20", "--results", tmp_path / "r")
    said = ddl("recommend", *asked, "--dry-run", status=0).output
    for batch in (10, 20):
        assert f"\n  {command.format(batch=batch)}\n" in said
    assert "same weights" in said
    assert not (tmp_path / "r").exists()


def test_a_command_of_a_stored_study_does_not_start(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of results may come from anybody: its study names what this call has not."""
    search, asked = CommandSearch(request(command, 1, 2), Tree(tmp_path)), []
    default, (other,) = search.space.default, search.space.given
    foreign = default.model_copy(update={"command": "rm -r /"})
    stored = study_of(search.name, "?", [foreign, default], starts=3, interleaved=True)
    write_study(stored, search.tree)
    monkeypatch.setattr(
        "ddl_tools.recommend.search.run_study", lambda study, *_, **__: asked.append(study)
    )
    search.measure_block([default, other])
    assert {one.command for one in asked[0].expand()} == {default.command, other.command}
    assert asked[0].reference(0).command == default.command


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that measures scripts."""
    marks = (pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.notebook, pytest.mark.alone)
    for mark in (*marks, pytest.mark.timeout(600)):
        test = mark(test)
    return test


BATCHES = (10, 40, 13)  # one is twice as fast as the default, and one dies


@pytest.fixture(scope="module")
def tree(folder: Path) -> Tree:
    return Tree(folder / "results")


@pytest.fixture(scope="module")
def first(command: str, tree: Tree) -> CommandAnswer:
    """Return what a call has found that ends after one start."""
    search = CommandSearch(request(command, *BATCHES, minutes=4), tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MOST_STARTS", 1)
        search.run()
    return CommandAnswer(search)


@pytest.fixture(scope="module")
def second(command: str, tree: Tree, first: CommandAnswer) -> Recommend:
    """Return what the command answers that goes on from the records of the first call."""
    values = f"batch={','.join(map(str, BATCHES))}"
    asked = ("--command", command, "--try", values, "--minutes", 4, "--results", tree.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MOST_STARTS", 2)
        said = ddl("recommend", *asked, "--json", status=0).stdout
    return Recommend.model_validate_json(said)


@real
def test_of_one_start_nothing_is_proven(first: CommandAnswer) -> None:
    assert first.verdict == Verdict.UNPROVEN
    assert first.ratio.value == pytest.approx(rate(40) / rate(10), rel=0.05)
    assert re.search(r"batch 40, \S+ times the default; \d+ more minute", first.lines[0])


@real
def test_what_dies_is_named_with_its_last_words(second: Recommend) -> None:
    (failed,) = [line for line in second.lines if line.startswith("failed ")]
    assert "batch 13: " in failed
    assert "13 images do not fit" in failed


@real
def test_a_second_call_proves_a_known_ratio(second: Recommend) -> None:
    assert second.verdict == Verdict.PROVEN
    assert second.ratio.n >= plan.STARTS
    assert second.ratio.value == pytest.approx(rate(40) / rate(10), rel=0.05)
    assert second.hours is None
    (memory,) = [line for line in second.lines if line.startswith("memory ")]
    amounts = [float(one) for one in re.findall(r"([\d.]+) GiB", memory)]
    assert len(amounts) == 2
    assert all(0 < one < 0.2 for one in amounts)


@real
def test_the_line_to_copy_starts_the_script(second: Recommend, folder: Path) -> None:
    assert second.command.endswith("train.py --batch 40")
    ended = subprocess.run(
        f"timeout 2 env {second.command}",
        shell=True,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert '{"images": 40}' in ended.stdout


@real
def test_figure_page_and_study_file_are_written(second: Recommend, tree: Tree) -> None:
    (page,) = (tree.root / "recommend").glob("*.html")
    assert "data:image/png" in page.read_text()
    assert second.lines[0] in page.read_text()
    assert [*(tree.root / "recommend").glob("train_*")] == []


@real
def test_what_hangs_is_ended_and_the_others_are_compared(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_STARTS", 1)
    monkeypatch.setattr("ddl_tools.recommend.command.LEAST_S", 24.0)
    monkeypatch.setattr("ddl_tools.recommend.command.PATIENCE", 0.0)
    search = CommandSearch(request(command, 10, 17, 40, minutes=4), Tree(tmp_path))
    search.run()
    answer = CommandAnswer(search)
    assert answer.verdict == Verdict.UNPROVEN
    (failed,) = answer.failed
    assert re.search(r"batch 17: .*no line like", failed)


@real
def test_what_does_not_fit_together_starts_one_after_the_other(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_STARTS", 1)
    monkeypatch.setattr("ddl_tools.recommend.command.free_bytes", lambda: {HERE: 2**20})
    search = CommandSearch(request(command, 10, 40, minutes=4), Tree(tmp_path))
    search.run()
    answer = CommandAnswer(search)
    rows = [row for item in search.entries() for row in read_epochs(item.directory)]
    assert len(rows) == 6
    assert all(row.interleave is None for row in rows)
    assert answer.ratio.value == pytest.approx(rate(40) / rate(10), rel=0.05)
    assert any("one after the other" in line for line in answer.lines)
    answer.write()
    assert answer.page.exists()


@real
def test_where_all_fail_the_error_of_the_script_is_told(command: str, tmp_path: Path) -> None:
    asked = ("--command", command, "--try", "batch=13,13.0", "--results", tmp_path)
    said = ddl("recommend", *asked, status=1)
    assert "13 images do not fit" in said.stderr
    assert shlex.join([sys.executable, "train.py"]) in said.stderr
