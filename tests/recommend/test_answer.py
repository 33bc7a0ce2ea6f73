"""What an answer says of the limit, of the time and of one's own code, without any run."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import STOPPED, LaunchError, SpecError
from ddl_tools.analysis import estimates
from ddl_tools.recommend.answer import (
    COMMUNICATION,
    COMPUTE,
    LOADER,
    WAITING,
    Answer,
    write_study_file,
    written,
)
from ddl_tools.recommend.plan import Verdict
from ddl_tools.recommend.search import Search, _name, study_of
from ddl_tools.recommend.search_space import Request, change, named, settings, space
from ddl_tools.records.paths import Tree, results
from ddl_tools.scaling.candidate import Candidate
from ddl_tools.scaling.options import options
from ddl_tools.study import Study
from tests.launch.running import ddl
from tests.pictures import write_pictures


@pytest.mark.parametrize(
    ("training", "shares", "part", "gain"),
    [
        (2.0, {LOADER: 0.1, COMPUTE: 0.9}, LOADER, 1.0),
        (1.0, {LOADER: 0.1, COMMUNICATION: 0.5}, COMMUNICATION, 1.0),
        (1.0, {WAITING: 0.25, COMMUNICATION: 0.1}, WAITING, 1 / 3),
        (1.02, {LOADER: 0.01, WAITING: 0.05, COMPUTE: 0.94}, COMPUTE, 0),
        (1.02, {}, COMPUTE, 0),
        (0.0, {}, COMPUTE, 0),
    ],
)
def test_the_limit_is_the_part_whose_removal_promises_most(
    training: float, shares: dict[str, float], part: str, gain: float
) -> None:
    known = SimpleNamespace(shares=shares or None, alone=(training, 9.0), WORTH=Answer.WORTH)
    assert Answer.limit.fget(known) == (part, pytest.approx(gain))


def lines_of(**changes: object) -> list[str]:
    """Return an invented answer; its leader is compiled, and has a larger batch that is faster."""
    default = RunSpec(strategy="ddp", gpus_per_node=2, device="cuda", precision="torch",
                      local_batch_size=8, loader_workers=4)  # fmt: skip
    leader = default.model_copy(update={"loader": "turbo", "compile": True})
    rate = estimates.middle([50.0, 51.0, 52.0])
    candidate = Candidate(leader, "", (2,), (), lambda ranks: rate, settings(leader))
    (option,) = options(candidate, [2], 2, 640, 90, None)
    values: dict[str, object] = {
        "verdict": Verdict.PROVEN, "leader": leader, "chosen": leader, "default": default,
        "ratio": estimates.middle([1.5, 1.52, 1.51]), "busy": 0.4, "minutes": 2,
        "option": option, "default_name": named(default), "rate": lambda spec: rate,
        "change": lambda spec: change(spec, default), "WORTH": Answer.WORTH,
        "larger": leader.model_copy(update={"local_batch_size": 16, "base_lr": 0.05}),
        "compared": {"slower": ["native: 0.662", "Horovod: 0.5"], "inconclusive": []},
        "failed": ["Horovod: out of memory"], "unfit": ["PyTorch-DDP: out of memory"],
        "untried": ["PyTorch-FSDP (refused)"],
        "agreement": [], "unread": 3, "limit": (LOADER, 0.5), "alone": (1.5, 3.0),
        "shares": {LOADER: 0.3, COMPUTE: 0.7}, "read_mb": 2.5, "epochs": 90,
        "space": SimpleNamespace(images=640), "energy": "0.1 kWh",
        "start": "ddl study run FILE", "page": "answer.html",
    }  # fmt: skip
    return written(SimpleNamespace(**values | changes))


def line_of(name: str, **changes: object) -> str:
    texts = [one for one in lines_of(**changes) if one.startswith(f"{name} ")]
    return texts[0].removeprefix(name).strip() if texts else ""


def test_an_answer_in_words() -> None:
    expected = Path(__file__).with_name("answer.txt").read_text().splitlines()
    assert lines_of() == expected


def test_the_first_line_says_what_is_known() -> None:
    few, none = estimates.middle([1.5]), estimates.middle([])
    said = {
        verdict: lines_of(verdict=verdict, ratio=few, chosen=RunSpec())[0] for verdict in Verdict
    }
    assert all(text.startswith(verdict) for verdict, text in said.items())
    assert "; 2 more minutes" in said[Verdict.UNPROVEN]
    assert "40 % of the cores" in said[Verdict.DISTURBED]
    assert "1.50 of it" in said[Verdict.DEFAULT]
    assert lines_of(verdict=Verdict.DEFAULT, ratio=none)[0] == Verdict.DEFAULT


@pytest.mark.parametrize("part", [LOADER, COMPUTE])
@pytest.mark.parametrize("gain", [0.0, 0.5])
@pytest.mark.parametrize("alone", [(1.5, 3.0), (1.5, 0.9), (0.0, 0.0)])
def test_no_space_stands_before_punctuation(
    part: str, gain: float, alone: tuple[float, float]
) -> None:
    text = line_of("limit", limit=(part, gain), alone=alone)
    assert ("up to 1.50 times as fast; time: " in text) is bool(gain)
    assert not re.search(r"\s[;:,]", text)


def test_what_is_not_known_has_no_line() -> None:
    unknown = estimates.middle([])
    for name, changes in {
        "larger batch": {"larger": None},
        "memory": {"unfit": []},
        "failed": {"failed": []},
        "machine": {"busy": None},
        "data": {"read_mb": None},
    }.items():
        assert line_of(name)
        assert not line_of(name, **changes)
    assert "not measured" in line_of("speed", rate=lambda spec: unknown)
    assert "hides its parts" in line_of("limit", shares=None, alone=(0.0, 0.0))


@pytest.mark.parametrize(("device", "both"), [("cpu", "share the cores"), ("cuda", "together")])
def test_a_loader_that_alone_is_fast_enough_is_no_limit_by_itself(device: str, both: str) -> None:
    chosen = RunSpec(device=device)
    assert line_of("limit", chosen=chosen).startswith(f"loader and training {both}, ")
    slow = line_of("limit", chosen=chosen, alone=(1.5, 1.0))
    assert slow.startswith("loader, without it up to 1.50 times")


def test_more_noise_asks_for_more_minutes() -> None:
    minutes = [
        Answer.minutes.fget(
            SimpleNamespace(
                ratio=estimates.middle([1.2 / one, 1.2, 1.2 * one]),
                search=SimpleNamespace(block_s=lambda block: 60.0),
                default=None,
                leader=None,
            )
        )
        for one in (1.05, 1.3)
    ]
    assert minutes[0] < minutes[1]


def code_of(spec: RunSpec) -> list[str]:
    lines = lines_of(chosen=spec)
    return [one.removeprefix("    ") for one in lines[lines.index("in your own code:") + 1 :]]


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"strategy": "ddp", "gpus_per_node": 2, "device": "cpu", "cpu_threads": 3},
         ["# start: OMP_NUM_THREADS=3 torchrun --nproc_per_node=2 train.py",
          "model = torch.nn.parallel.DistributedDataParallel(model)"]),
        ({"strategy": "ddp", "gpus_per_node": 2, "ddp_bucket_view": True},
         ["(model, gradient_as_bucket_view=True)"]),
        ({"strategy": "deepspeed", "gpus_per_node": 2, "deepspeed_zero_stage": 2},
         ['"zero_optimization": {"stage": 2}']),
        ({"activation_checkpointing": True}, ["checkpoint(block, x, use_reentrant=False)"]),
        ({"strategy": "fsdp", "gpus_per_node": 2, "compile": True},
         ["block.forward = torch.compile(block.forward, dynamic=False)"]),
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
    code = code_of(RunSpec(**fields))
    assert len(code) <= 14
    for line in lines:
        assert any(line in one for one in code), (line, code)
    compile("\n".join(one for one in code if one.strip()), "train.py", "exec")


@pytest.mark.parametrize("loader", ["native", "dali_gpu"])
def test_one_process_needs_no_ranks(loader: str) -> None:
    """It has no process group, which a DistributedSampler asks for its number."""
    code = "\n".join(code_of(RunSpec(device="cuda", loader=loader)))
    assert not any(word in code for word in ("rank", "Distributed"))


def test_numbers_of_ranks_that_are_a_text_are_refused() -> None:
    """As papermill's option -p gives them."""
    with pytest.raises(SpecError, match="no number of ranks; give them as a list"):
        Request("resnet8", Path("D"), workers=tuple("(1, 2)"))


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
        assert Answer.start.fget(known) == f"ddl study run F {end}"


def test_without_a_complete_start_the_failure_is_named(tmp_path: Path) -> None:
    search = Search(Request("resnet8", write_pictures(tmp_path, 64, 8), minutes=1), results())
    with pytest.raises(LaunchError, match=r"^no configuration was started; allow more --minutes$"):
        Answer(search)
    search.unfit["PyTorch-DDP"] = "out of memory"
    with pytest.raises(LaunchError, match=r"was started; PyTorch-DDP: out of memory; allow more"):
        Answer(search)
    search.unfit.clear()
    search.known.failed[search.space.default] = "no attribute 'Lineer'"
    with pytest.raises(
        LaunchError, match=r"started; the default: no attribute 'Lineer'; allow more"
    ):
        Answer(search)


def test_an_early_interrupt_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "run", lambda self: setattr(self, "stopped", True))
    data = write_pictures(tmp_path, 64, 8)
    said = ddl("recommend", "--model", "resnet8", "--data", data, "--results", results().root)
    assert said.exit_code == STOPPED
    assert "no configuration was started; the same command goes on" in said.output
