"""What an answer says of the limit, of the time and of one's own code, without any run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import STOPPED, LaunchError
from ddl_tools.analysis import estimates
from ddl_tools.recommend.answer import (
    COMMUNICATION,
    COMPUTE,
    LOADER,
    WAITING,
    Answer,
    write_study_file,
)
from ddl_tools.recommend.candidates import Request, space
from ddl_tools.recommend.plan import Verdict
from ddl_tools.recommend.search import Search, _name, study_of
from ddl_tools.records.paths import Tree, results
from ddl_tools.study import Study
from tests.launch.running import ddl
from tests.pictures import write_pictures


def limit_of(
    loading: float, training: float, shares: dict[str, float], device: str = "cpu"
) -> tuple[str, str]:
    """Return limit and advice, from the ratios of both parts to the whole."""
    known = SimpleNamespace(
        chosen=RunSpec(device=device),
        shares=lambda: shares or None,
        _alone=lambda: (training, loading),
    )
    return Answer._limit(known)


@pytest.mark.parametrize(
    ("loading", "training", "shares", "limit", "advice"),
    [
        (1.0, 2.0, {LOADER: 0.1, COMPUTE: 0.9}, "loader, without it up to 2.00", "smaller stored"),
        (9.0, 1.0, {LOADER: 0.1, COMMUNICATION: 0.5}, "communication, without it",
         "a larger --batch"),
        (9.0, 1.0, {WAITING: 0.3, COMMUNICATION: 0.1}, "waiting, without it", "ranks that are"),
        (9.0, 1.02, {LOADER: 0.01, WAITING: 0.05, COMPUTE: 0.94}, "compute; time: ", "a GPU: "),
        (9.0, 1.02, {}, "compute; time: this strategy hides its parts", "a GPU: "),
        (0.0, 0.0, {}, "compute; time: this strategy hides its parts", "a GPU: "),
    ],
)  # fmt: skip
def test_the_limit_is_the_part_whose_removal_promises_most(
    loading: float, training: float, shares: dict[str, float], limit: str, advice: str
) -> None:
    found_limit, found_advice = limit_of(loading, training, shares)
    assert found_limit.startswith(limit)
    share = f"{100 / training:.0f} % of its training alone" if training else "hides its parts"
    assert share in found_limit
    assert found_advice.startswith(advice)


@pytest.mark.parametrize(("device", "both"), [("cpu", "share the cores"), ("cuda", "together")])
def test_a_loader_that_alone_is_fast_enough_is_no_limit_by_itself(device: str, both: str) -> None:
    limit, advice = limit_of(3.0, 1.5, {LOADER: 0.3, COMPUTE: 0.7}, device)
    assert limit.startswith(f"loader and training {both}, without the loader up to 1.50 times")
    assert advice.startswith("smaller stored")


def head_of(ratios: list[float], verdict: Verdict, others: float = 0.0) -> str:
    """Return the first line of an answer whose leader compiles."""
    known = SimpleNamespace(
        leader=RunSpec(compile=True),
        default=RunSpec(),
        ratio=estimates.middle(ratios),
        verdict=verdict,
        search=SimpleNamespace(load=SimpleNamespace(others=others), block_s=lambda block: 60.0),
    )
    known._minutes = lambda: Answer._minutes(known)
    known._machine = lambda: Answer._machine(known)
    return Answer.head.fget(known)


def test_the_first_line_says_what_is_known() -> None:
    proven = head_of([1.5, 1.52, 1.51], Verdict.PROVEN)
    assert proven.startswith("faster, proven: torch.compile, 1.51 [")
    assert proven.endswith("times the default")
    assert head_of([1.5], Verdict.UNPROVEN).endswith(
        "1.50 times the default; 2 more minutes would do"
    )
    assert "; the fastest other one, torch.compile, reached 0.9" in head_of([0.9], Verdict.DEFAULT)
    assert head_of([], Verdict.DEFAULT) == "no proven gain: keep the default"
    assert "took 40 % of the cores" in head_of([1.5], Verdict.DISTURBED, 0.4)


def test_more_noise_asks_for_more_minutes() -> None:
    quiet, noisy = (head_of([1.2 / one, 1.2, 1.2 * one], Verdict.UNPROVEN) for one in (1.05, 1.3))
    minutes = [int(text.split("; ")[1].split()[0]) for text in (quiet, noisy)]
    assert minutes[0] < minutes[1]


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"strategy": "ddp", "gpus_per_node": 2, "device": "cpu", "cpu_threads": 3},
         ["# start: OMP_NUM_THREADS=3 torchrun --nproc_per_node=2 train.py",
          "model = torch.nn.parallel.DistributedDataParallel(model)"]),
        ({"strategy": "horovod", "gpus_per_node": 4, "device": "cuda"},
         ["# start: horovodrun -np 4 python train.py"]),
        ({"device": "cuda", "precision": "bf16", "channels_last": True, "compile": True},
         ["model.compile()", 'with torch.autocast("cuda", torch.bfloat16):']),
        ({"device": "cuda", "loader": "dali_gpu", "loader_workers": 3},
         ["num_threads=3", 'device="mixed"', "size=[224, 224]"]),
        ({"device": "cuda", "loader": "dali_gpu", "dali_decode": "cpu"},
         ['device="cpu"', "images.gpu()"]),
        ({"device": "cpu", "loader": "dali_cpu"}, ['device="cpu"', "device_id=None"]),
        ({"device": "cpu", "loader": "turbo"}, ["simplejpeg", "num_workers=8"]),
        ({"device": "cuda", "precision": "fp32"}, ["torch.backends.cudnn.allow_tf32 = False"]),
    ],
)  # fmt: skip
def test_the_lines_of_ones_own_program_are_those_of_the_configuration(
    fields: dict[str, object], lines: list[str]
) -> None:
    code = Answer._code(SimpleNamespace(chosen=RunSpec(**fields)))
    assert len(code) <= 14
    for line in lines:
        assert any(line in one for one in code), (line, code)
    compile("\n".join(one for one in code if one.strip()), "train.py", "exec")


@pytest.mark.parametrize("loader", ["native", "dali_gpu"])
def test_one_process_needs_no_ranks(loader: str) -> None:
    """It has no process group, which a DistributedSampler asks for its number."""
    spec = RunSpec(device="cuda", loader=loader)
    code = "\n".join(Answer._code(SimpleNamespace(chosen=spec)))
    assert not any(word in code for word in ("rank", "Distributed"))


def test_a_long_name_of_a_network_leaves_the_name_of_its_study_valid(tmp_path: Path) -> None:
    images = write_pictures(tmp_path, 64, 8)
    asked = [Request(f"{'a' * 96}:{end}", images) for end in "bc"]
    found = space(Request("resnet8", images))
    first, second = (_name(one, found) for one in asked)
    study = study_of(first, "resnet8", [found.default], interleaved=True)
    assert study.name == first != second


def test_more_minutes_go_on_with_the_same_search(tmp_path: Path) -> None:
    images = write_pictures(tmp_path, 64, 8)
    names = {Search(Request("resnet8", images, minutes), results()).name for minutes in (1, 20)}
    assert len(names) == 1


def test_a_study_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in ("08", "1e5", "0x10", "no", "null"):
        base = {"dataset": name, "model": "a:b", "base_lr": 1e-05}
        study = Study(name="train", question=f"{name}: yes?", base=base)
        assert Study.load(write_study_file(study, Tree(tmp_path))) == study


def test_the_start_names_the_folder_of_the_records_if_it_was_given(tmp_path: Path) -> None:
    for tree, end in ((results(), "--data D"), (Tree(tmp_path), f"--data D --results {tmp_path}")):
        search = SimpleNamespace(request=Request("resnet8", Path("D")), tree=tree)
        known = SimpleNamespace(_training_file="F", search=search)
        assert Answer._start(known) == f"ddl study run F {end}"


def test_without_a_complete_start_the_failure_is_named(tmp_path: Path) -> None:
    search = Search(Request("resnet8", write_pictures(tmp_path, 64, 8), minutes=1), results())
    with pytest.raises(LaunchError, match=r"^no configuration was started; allow more --minutes$"):
        Answer(search)
    search.known.failed[search.space.default] = "no attribute 'Lineer'"
    with pytest.raises(LaunchError, match=r"started; .*DDP.*: no attribute 'Lineer'; allow more"):
        Answer(search)


def test_an_early_interrupt_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "run", lambda self: setattr(self, "stopped", True))
    data = write_pictures(tmp_path, 64, 8)
    said = ddl("recommend", "--model", "resnet8", "--data", data, "--results", results().root)
    assert said.exit_code == STOPPED
    assert "no configuration was started; the same command goes on" in said.output
