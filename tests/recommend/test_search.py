"""Searches on this machine, where the answer is known: PyTorch's own loader sleeps."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from ddl_core.errors import DataError, LaunchError
from ddl_core.registry import LOADERS, MODELS, STRATEGIES, Entry
from ddl_tools.cli.answers import Recommend
from ddl_tools.launch.local_ranks import SERVER
from ddl_tools.recommend import plan, search_space
from ddl_tools.recommend.answer import Answer, answer_file
from ddl_tools.recommend.plan import Verdict
from ddl_tools.recommend.search import Search
from ddl_tools.recommend.search_space import Request
from ddl_tools.records.ledger import ledger, read_study
from ddl_tools.records.paths import Tree, results
from ddl_tools.study import Study
from tests.launch.running import ddl, two_ranks, wait_for
from tests.pictures import write_pictures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.notebook,
    pytest.mark.alone,
    pytest.mark.extended,
    two_ranks,
    pytest.mark.timeout(600),
]
MINUTES = 3.0  # a busy machine takes half a minute for the pilot
SLOW = """
import time

import torch
from torch.distributed.fsdp import FSDPModule
from ddl_core.loaders.native import Native
from ddl_core.strategies.ddp import DDP

class SlowStrategy(DDP):
    def optimizer_step(self, scaler):
        time.sleep(0.3)
        super().optimizer_step(scaler)

class SlowLoader(Native):
    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.3)
            yield batch

class QuickLoader(Native):
    pass

class OutOfMemoryError(RuntimeError):
    pass

def too_large(classes):
    raise OutOfMemoryError("CUDA out of memory")

class Heavy(torch.nn.Sequential):
    # A rank that keeps all weights of this network has no memory for its activations. It takes its
    # time: an epoch has the steps that fit into some tenths of a second, and the loader sleeps.
    def forward(self, images):
        time.sleep(0.1)
        if len(images) > 2 and not isinstance(self, FSDPModule):
            torch.empty(1 << 50)
        return super().forward(images)

def heavy(classes):
    return Heavy(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, classes))

def misspelt(classes):
    return torch.nn.Lineer(8, classes)
"""
SITE = """
try:
    from ddl_core import registry
except ImportError:  # another Python
    pass
else:
    registry.LOADERS["native"] = registry.Entry("slow_things:SlowLoader")
"""
NAMES = [
    ("strategy", "slow_strategy", "SlowStrategy", STRATEGIES),
    ("loader", "quick_loader", "QuickLoader", LOADERS),
    ("model", "too_large", "too_large", MODELS),
    ("model", "heavy", "heavy", MODELS),
]


@pytest.fixture(scope="module", autouse=True)
def slow_things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let this process, and all that it starts, have a native loader that sleeps."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "slow_things.py").write_text(SLOW)
    (folder / "sitecustomize.py").write_text(SITE)
    info = folder / "slow_things-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow_things\nVersion: 1.0\n")
    points = [f"[ddl_core.{kind}]\n{name} = slow_things:{code}\n"
              for kind, name, code, _ in NAMES]  # fmt: skip
    (info / "entry_points.txt").write_text("".join(points))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.delenv(SERVER, raising=False)  # which does not know them
        for _, name, code, table in NAMES:
            patch.setitem(table, name, Entry(f"slow_things:{code}"))
        others = [name for name in LOADERS if name not in ("native", "quick_loader")]
        others += [name for name in STRATEGIES if name not in ("ddp", "slow_strategy")]
        patch.setattr(search_space, "NO_CANDIDATES", others)
        patch.setattr(search_space, "EPOCH_S", {"cpu": 0.3})
        patch.setattr(plan, "DISTURBED", 1.0)  # other tests may be at work
        patch.setattr(plan, "AGAIN", 1.0)  # and slow the parts
        yield


class Found(NamedTuple):
    search: Search
    answer: Answer
    seconds: float

    def line(self, name: str) -> str:
        """Return a line of the answer; empty if it has none of this name."""
        texts = [one for one in self.answer.lines if one.startswith(f"{name} ")]
        return texts[0].removeprefix(name).strip() if texts else ""


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    images = write_pictures(tmp_path_factory.mktemp("search") / "images", 256, 16)
    return Request("resnet8", images, MINUTES, workers=(2,), image_size=32)


@pytest.fixture(scope="module")
def tree(request_: Request) -> Tree:
    return Tree(request_.data_dir.parent / "results")


def found(request: Request, tree: Tree, stop: bool = False) -> Found:
    """Search; interrupt it after its first block."""
    search, began = Search(request, tree), time.monotonic()
    ended = threading.Event()

    def interrupt() -> None:
        wait_for(lambda: any(search.known.starts.values()) or ended.is_set(), "a start", 600)
        time.sleep(1)
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    if stop:
        threading.Thread(target=interrupt, daemon=True).start()
    search.run()
    ended.set()
    answer = Answer(search)
    answer.write()
    return Found(search, answer, time.monotonic() - began)


@pytest.fixture(scope="module")
def stopped(request_: Request, tree: Tree) -> Found:
    """Return what a search has found that was interrupted in its second start."""
    return found(replace(request_, minutes=10.0), tree, stop=True)


@pytest.fixture(scope="module")
def finished(request_: Request, tree: Tree, stopped: Found) -> Found:
    """Return what the same search has found, called again."""
    return found(request_, tree)


def test_an_interrupt_ends_with_what_is_known(stopped: Found) -> None:
    assert stopped.search.stopped
    assert stopped.answer.verdict == Verdict.UNPROVEN, "of one start nothing is proven"
    assert "quick_loader" in stopped.answer.lines[0]
    assert re.search(r"\d+ more minutes? would do", stopped.answer.lines[0])


def test_a_second_call_goes_on_and_keeps_the_limit(finished: Found, tree: Tree) -> None:
    assert not finished.search.stopped
    assert finished.seconds <= 1.1 * 60 * MINUTES
    own = finished.search.name
    assert {*tree.studies()} == {own, f"{own}_parts"}, "nothing lies in adhoc"


def test_parts_are_measured_twice(finished: Found, tree: Tree) -> None:
    parts = read_study(f"{finished.search.name}_parts", tree)
    states = [item.state for item in ledger(parts, tree)]
    assert parts.repeats == 2
    assert {*states} == {"completed"}


def test_a_native_loader_that_sleeps_is_found(finished: Found) -> None:
    assert finished.answer.verdict == Verdict.PROVEN
    head = finished.answer.lines[0]
    assert re.search(r"^faster, proven: .*quick_loader.* \d.* times the default$", head)
    assert "quick_loader" in finished.line("use")
    assert "slow_strategy" not in finished.line("use")


def test_the_answer_says_what_limits_and_how_to_use_it(finished: Found) -> None:
    assert re.search(r"\[\d.*\] images/s \(\d+ starts, 95 % interval\)", finished.line("speed"))
    assert re.search(r"\d+ % of its training alone; the loader alone", finished.line("limit"))
    assert "90 epochs of 256 images" in finished.line("training")
    assert re.search(r"other programs took \d+ % of the cores", finished.line("machine"))
    assert "torchrun --nproc_per_node=2" in "\n".join(finished.answer.lines)
    assert finished.answer.alarm == ""


def test_its_files_can_be_used(finished: Found, tree: Tree) -> None:
    (path,) = re.findall(r"ddl study run (\S+\.yaml) --data", finished.line("start"))
    (run,) = Study.load(Path(path)).expand()
    assert (run.model, run.epochs, run.train_images) == ("resnet8", 90, None)
    assert run.loader == "quick_loader"
    (searched,) = Path(path).parent.glob("recommend_*.yaml")
    assert len(Study.load(searched).expand()) > 2
    page = Path(finished.line("page").partition(";")[0]).read_text()
    assert "data:image/png" in page
    assert "faster, proven" in page
    kept = answer_file(tree, finished.search.name).read_text().splitlines()
    assert kept[0] == finished.answer.lines[0]
    assert "in your own code:" in kept


def test_the_command_prints_the_answer(finished: Found, request_: Request, tree: Tree) -> None:
    """Called a third time, with so little time that nothing more is measured."""
    asked = ("--model", request_.model, "--data", request_.data_dir, "--image-size", 32)
    limits = ("--minutes", 1, "--workers", 2, "--results", tree.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddl_tools.recommend.search.FINISH_S", 58)
        said = ddl("recommend", *asked, *limits)
        as_json = ddl("recommend", *asked, *limits, "--json", status=0).stdout
    assert said.exit_code == 0, said.output
    assert "here: " in said.output
    found = Recommend.model_validate_json(as_json)
    assert found.lines[0] == finished.answer.lines[0]
    assert found.recommended["model"] == request_.model
    assert f"\n{finished.answer.lines[0]}\n" in said.output


def test_the_limit_holds_in_the_background(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell lets what it starts there ignore SIGINT; here a run hangs."""
    monkeypatch.setattr("ddl_tools.recommend.search.plan_run", lambda *about: time.sleep(60))
    search, began = Search(replace(request_, minutes=0.3), Tree(tmp_path)), time.monotonic()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        search.run()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not search.stopped
    assert time.monotonic() - began < 30


def test_images_that_cannot_be_read_end_the_search(request_: Request, tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "images", 64, 8)
    for image in data.rglob("*.JPEG"):
        image.write_bytes(b"no image")
    with pytest.raises(DataError, match="images of this epoch are unreadable"):
        Search(replace(request_, data_dir=data), results()).run()


def test_a_network_that_does_not_fit_has_a_remedy(request_: Request) -> None:
    with pytest.raises(LaunchError, match=r"(?s)too_large cannot train here.*try --batch 4"):
        Search(replace(request_, model="too_large"), results()).run()


def test_a_network_that_needs_sharding_is_searched_with_it(
    request_: Request, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither DDP, nor with fewer copies of gradients, has the memory that each rank may use."""
    others = [name for name in search_space.NO_CANDIDATES if name != "fsdp"]
    monkeypatch.setattr(search_space, "NO_CANDIDATES", [*others, "slow_strategy"])
    sharded = found(replace(request_, model="heavy"), results())
    assert sharded.search.space.default.strategy == "fsdp"
    assert re.search(
        r"PyTorch-DDP.*: out of memory; .*bucket view.*: out of memory", sharded.line("memory")
    )
    assert sharded.line("default").startswith("PyTorch-FSDP")
    assert capsys.readouterr().err.count("out of memory") == 2


def test_a_mistake_in_a_network_ends_the_search(request_: Request) -> None:
    search = Search(replace(request_, model="slow_things:misspelt"), results())
    with pytest.raises(
        LaunchError, match=r"(?s)cannot train here.*no attribute 'Lineer'"
    ) as caught:
        search.run()
    assert "--batch" not in str(caught.value)
