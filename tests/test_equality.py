"""Every registered strategy does what one process does: same weights, statistics, images, rates.

Real processes, 20 steps. One process with V virtual workers is the reference for V workers, however
they are spread. Strategies that are not installed are skipped, but must be there where CI is set.
"""

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, NotInstalledError
from ddl_core.registry import STRATEGIES, resolve
from ddl_core.schedules import learning_rate
from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.run import EpochRecord, RunRecord, read_epochs, read_record, write_record
from tests import planted
from tests.closeness import apart, assert_far, assert_near, falls
from tests.launch.running import error_of
from tests.pictures import write_pictures

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "add-a-strategy.md"
OF_TORCH = [name for name, entry in STRATEGIES.items() if "torch" in entry.frameworks]
CONTESTANTS = [*(name for name in OF_TORCH if name != "single"), "manual"]

TRAIN_IMAGES, EVAL_IMAGES = 83, 9  # nothing divides evenly; of two ranks one has a batch more
TINY: dict[str, Any] = {
    "model": "tiny",
    "image_size": 16,
    "classes": 4,
    "local_batch_size": 4,
    "loader_workers": 0,
    "discard_steps": 0,
    "warmup_epochs": 1,
    "schedule": "cosine",
    "base_lr": 0.01,  # at which it learns: what rounding does stays as small as it is
    "weight_decay": 0.01,
    "precise_bn": True,
    "device": "cpu",
}
# 10 steps an epoch with two workers, 5 with four, 2 with eight.
TWENTY_STEPS = {2: {"epochs": 2}, 4: {"epochs": 4}, 8: {"epochs": 10}}
PASSES = "2 ranks, 4 micro-batches in 2 passes"
SPREADS = {
    "2 ranks": {"gpus_per_node": 2},
    "2 ranks, 2 micro-batches each": {"gpus_per_node": 2, "accumulation": 2},
    "4 ranks": {"gpus_per_node": 4},
    "8 ranks": {"gpus_per_node": 8},
    "2 ranks, 4 micro-batches each": {"gpus_per_node": 2, "accumulation": 4},
    PASSES: {"gpus_per_node": 2, "accumulation": 4, "micro_batches_per_pass": 2},
}
EIGHT = ["8 ranks", "2 ranks, 4 micro-batches each"]  # under one strategy: the loop is one

PAIRS = [
    (name, spread)
    for name in CONTESTANTS
    for spread in SPREADS
    if name != "manual" and (name == "ddp" or spread not in EIGHT)
]
PAIRS.append(("manual", "2 ranks"))

# Repeated under other instruction sets: the rest is the same arithmetic in other places.
REPEATED = ["4 ranks", "2 ranks, 2 micro-batches each"]
MARKED_PAIRS = [
    pytest.param(
        name,
        spread,
        marks=[pytest.mark.numeric] * (spread in REPEATED)
        + [pytest.mark.extended] * (spread == PASSES and name != "ddp"),
    )
    for name, spread in PAIRS
]


# Without statistics of batches, and with dropout; and one of each zoo.
OF_OTHERS = """
from torch import nn

def normed(classes, *more):
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.GELU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), *more, nn.Linear(32, classes))

def dropped(classes):
    return normed(classes, nn.Dropout(0.5))
"""
NETWORKS = {
    "others:normed": 16,
    "others:dropped": 16,
    "torchvision/shufflenet_v2_x0_5": 32,
    "timm/test_vit": 32,
}


@dataclass
class Result:
    state: dict[str, Any]
    train: list[EpochRecord]
    evaluation: list[EpochRecord]
    spec: RunSpec


@pytest.fixture(scope="module", autouse=True)
def _names(tmp_path_factory) -> Iterator[None]:
    """Let this process and the ranks know `tests.planted` and the page's example."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    folder = tmp_path_factory.mktemp("example")
    (folder / "manual.py").write_text(example)
    (folder / "others.py").write_text(OF_OTHERS)
    with pytest.MonkeyPatch.context() as patch:
        planted.teach(patch)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.syspath_prepend(folder)
        patch.setattr("ddl_tools.limits.cores", lambda: 8.0)
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("images"), TRAIN_IMAGES, EVAL_IMAGES)


def planned(directory: Path, images: Path, **fields: Any) -> Path:
    workers = fields.get("gpus_per_node", 1) * fields.get("accumulation", 1)
    spec = RunSpec(**{**TINY, **TWENTY_STEPS[workers], **fields})
    write_record(directory, RunRecord.plan("test", spec, str(images)))
    return directory


def result(directory: Path) -> Result:
    run_ranks(directory)
    rows = read_epochs(directory)
    return Result(
        state=torch.load(RunFiles(directory).checkpoint, weights_only=True),
        train=[row for row in rows if row.phase == "train"],
        evaluation=[row for row in rows if row.phase == "eval"],
        spec=read_record(directory).spec,
    )


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    """Run a strategy once in each way; later calls return the same result."""
    done: dict[tuple[str, str], Result] = {}

    def of(strategy: str, **fields: Any) -> Result:
        key = (strategy, str(fields))
        if key not in done:
            directory = tmp_path_factory.mktemp("run")
            done[key] = result(planned(directory, images, strategy=strategy, **fields))
        return done[key]

    return of


def reference(run, other: Result) -> Result:
    return run("single", accumulation=other.spec.virtual_workers)


def installed(strategy: str) -> str:
    """Return `strategy`; skip the test if its package is not here, unless it has to be."""
    try:
        resolve("strategy", strategy)
    except NotInstalledError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return strategy


# docs/contributing/test-tolerances.md explains these.
STATE_TOLERANCE = 1e-4
LOSS_TOLERANCE = 1e-5


def assert_same_training(got: Result, want: Result) -> None:
    """Compare the state after the last step, and the way there."""
    assert_near(numbers(got), numbers(want), STATE_TOLERANCE)
    assert rates(got) == rates(want)


def numbers(of: Result) -> dict[str, torch.Tensor]:
    # num_batches_tracked counts the forward passes of one rank.
    model = {
        name: tensor for name, tensor in of.state["model"].items() if tensor.is_floating_point()
    }
    state = of.state["optimizer"]["state"]
    assert len(state) > 0
    return model | {
        f"{name} {index}": value for index in state for name, value in state[index].items()
    }


def losses(of: Result) -> list[float]:
    return [row.loss for row in of.train + of.evaluation] + [of.evaluation[-1].precise_bn_loss]


def rates(of: Result) -> tuple:
    groups = of.state["optimizer"]["param_groups"]
    return [group["lr"] for group in groups], [row.lr for row in of.train]


@pytest.mark.parametrize(("strategy", "spread"), MARKED_PAIRS)
def test_twenty_steps_equal_those_of_one_process(run, strategy, spread):
    got = run(installed(strategy), **SPREADS[spread])
    assert_same_training(got, reference(run, got))
    spec = got.spec
    per_epoch = got.train[0].samples
    last = learning_rate(spec, spec.epochs * per_epoch - spec.global_batch_size, per_epoch)
    assert rates(got)[0] == [last]


@pytest.mark.parametrize(("strategy", "spread"), MARKED_PAIRS)
def test_same_images_steps_and_validation_as_one_process(run, strategy, spread):
    got = run(installed(strategy), **SPREADS[spread])
    want = reference(run, got)
    assert_near(losses(got), losses(want), LOSS_TOLERANCE)
    assert falls([row.loss for row in want.train])
    assert sum(row.steps for row in got.train) == 20
    for own, other in zip(got.train + got.evaluation, want.train + want.evaluation, strict=True):
        assert (own.samples, own.ids_sha256) == (other.samples, other.ids_sha256)
        assert (own.top1, own.top5) == (other.top1, other.top5)
    assert len({row.ids_sha256 for row in got.train}) == len(got.train)  # every epoch its own
    assert [row.samples for row in got.evaluation] == [EVAL_IMAGES] * len(got.evaluation)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=[] if name == "others:dropped" else pytest.mark.extended)
        for name in NETWORKS
    ],
)
def test_networks_of_others_are_trained_alike_by_all(run, model):
    fields = {"model": model, "image_size": NETWORKS[model]}
    got = {
        name: run(installed(name), gpus_per_node=2, **fields) for name in CONTESTANTS[:-1]
    }  # fmt: skip
    one = got["ddp"]
    for other in got.values():
        assert_same_training(other, one)
    if model != "others:dropped":  # whose units are drawn by each rank on its own
        assert_same_training(one, run("single", accumulation=2, **fields))


def test_powersgd_begins_when_it_is_asked_to(images, tmp_path):
    """Before, it is DDP to the last bit; after, gradients are rounded, and alike on all ranks."""
    steps = 10  # of an epoch
    of_ddp = {"strategy": "ddp", "gpus_per_node": 2, "checkpoint_every": 0}
    # Several buckets, whose messages must not meet.
    asked = {"plain": {}, "compressed": {"ddp_compression": "powersgd"}}
    asked["compressed"] |= {"ddp_powersgd_start": steps}
    records = {
        name: run_ranks(planned(tmp_path / name, images, ddp_bucket_mb=0.001, **of_ddp, **fields))
        for name, fields in asked.items()
    }
    losses = {
        name: [row.loss for row in read_epochs(tmp_path / name) if row.phase == "train"]
        for name in asked
    }
    assert losses["compressed"][0] == losses["plain"][0]
    assert losses["compressed"][1] != losses["plain"][1]
    assert losses["compressed"][1] < losses["compressed"][0]
    hashes = {name: record.weights_sha256 for name, record in records.items()}
    assert hashes["compressed"] != hashes["plain"]
    late = {**of_ddp, **asked["compressed"], "ddp_powersgd_start": 2 * steps}
    with pytest.raises(LaunchError, match=r"ddp_powersgd_start = 20, but the run has 20 steps"):
        run_ranks(planned(tmp_path / "late", images, **late))


def test_stage_3_evaluates_and_saves_with_weights_that_have_to_be_gathered(run):
    """Of small buckets no weight stays whole; of 9 images one rank has a batch more."""
    gathering = {"strategy": "deepspeed", "deepspeed_zero_stage": 3}
    got = run(**gathering, gpus_per_node=2, deepspeed_bucket_elements=1000)
    assert_same_training(got, run("single", accumulation=2))


LARS: dict[str, Any] = {"optimizer": "lars", "decay_norm_bias": False, "base_lr": 0.5}


with_lars = pytest.mark.skipif(
    find_spec("timm") is None and not os.environ.get("CI"),
    reason="timm is not installed; run `make env`",
)


@with_lars
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("ddp", marks=pytest.mark.numeric),
        *(name for name in CONTESTANTS[1:-1] if name != "fsdp"),  # which refuses it
    ],
)
def test_lars_and_undecayed_biases_equal_those_of_one_process(run, strategy):
    got, want = run(installed(strategy), gpus_per_node=2, **LARS), lars_alone(run)
    assert falls([row.loss for row in want.train])
    assert_same_training(got, want)


@pytest.mark.numeric
@with_lars
def test_a_rate_of_lars_one_percent_higher_is_seen(run):
    got = run("ddp", gpus_per_node=2, **{**LARS, "base_lr": 1.01 * LARS["base_lr"]})
    assert_far(numbers(got), numbers(lars_alone(run)), STATE_TOLERANCE)


def lars_alone(run) -> Result:
    return run("single", accumulation=2, **LARS)


ADAMW: dict[str, Any] = {"optimizer": "adamw", "base_lr": 0.002, "decay_norm_bias": False}
# Every update is clipped; by AdamW's rule that would change little.
CLIPPED: dict[str, Any] = {"clip_grad_norm": 0.2}
REST: dict[str, dict[str, Any]] = {"adamw": ADAMW, "clipped": CLIPPED}
OFTEN = "2 ranks, 2 micro-batches each"


@pytest.mark.parametrize(
    ("strategy", "spread", "setting"),
    [
        pytest.param(
            name,
            spread,
            setting,
            marks=[pytest.mark.numeric] * (name == "ddp" and spread == OFTEN)
            + [pytest.mark.extended] * (spread != OFTEN),
        )
        for name in CONTESTANTS
        for spread in ("2 ranks", OFTEN, "4 ranks")
        for setting in REST
        if name != "manual" or spread == "2 ranks"
    ],
)
def test_adamw_and_clipping_equal_those_of_one_process(run, strategy, spread, setting):
    got = run(installed(strategy), **SPREADS[spread], **REST[setting])
    want = run("single", accumulation=got.spec.virtual_workers, **REST[setting])
    assert falls([row.loss for row in want.train])
    assert_same_training(got, want)
    assert_near(losses(got), losses(want), LOSS_TOLERANCE)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({**REST.get(setting, {}), **more}, marks=marks)
        for setting, more, marks in (
            ("", {}, pytest.mark.numeric),
            ("adamw", {}, ()),
            ("clipped", {}, ()),
            ("clipped", {"accumulation": 2}, ()),
        )
    ],
    ids=str,
)
def test_hybrid_sharding_equals_one_process(run, fields):
    got = run("fsdp", gpus_per_node=4, fsdp_shards=2, **fields)
    want = run("single", **{**fields, "accumulation": got.spec.virtual_workers})
    assert falls([row.loss for row in want.train])
    assert_same_training(got, want)
    assert_near(losses(got), losses(want), LOSS_TOLERANCE)


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("setting", "unfair"),
    [
        ("adamw", {"base_lr": 1.01 * ADAMW["base_lr"]}),
        ("adamw", {"adam_beta1": 0.909}),
        ("clipped", {"clip_grad_norm": 1.01 * CLIPPED["clip_grad_norm"]}),
        ("clipped", {"clip_grad_norm": None}),
        ("clipped", {"strategy": "fsdp_clipped_by_part"}),
    ],
)
def test_other_moments_and_another_norm_are_seen(run, setting, unfair):
    fields = {"strategy": "ddp", **SPREADS[OFTEN], **REST[setting], **unfair}
    want = run("single", accumulation=4, **REST[setting])
    assert_far(numbers(run(**fields)), numbers(want), STATE_TOLERANCE)


# In short numbers: of what it fuses, the compiler rounds the last alone.
FUSED: dict[str, Any] = {"compile": True, "precision": "bf16", "precise_bn": False}
SHORT_TOLERANCE = 1e-3


@pytest.mark.extended
@pytest.mark.parametrize("shards", [None, 2])
def test_compiled_blocks_under_fsdp_equal_those_of_one_process(run, shards):
    """Recomputation makes one process compile blocks too."""
    workers = 2 * (shards or 1)
    fields = {"gpus_per_node": workers, "fsdp_shards": shards, **FUSED}
    want = run("single", accumulation=workers, activation_checkpointing=True, **FUSED)
    assert falls([row.loss for row in want.train])
    assert_near(numbers(run("fsdp", **fields)), numbers(want), SHORT_TOLERANCE)
    faster = run("fsdp", **fields, base_lr=1.01 * TINY["base_lr"])
    assert_far(numbers(faster), numbers(want), SHORT_TOLERANCE)


# A transformer, as transformers are trained: every update is clipped.
VIT: dict[str, Any] = {
    "model": "timm/test_vit",
    "image_size": 32,
    "optimizer": "adamw",
    "base_lr": 0.0003,
    "warmup_epochs": 0,
    "clip_grad_norm": 0.2,
}
SPREAD = 10  # times what one other order of sums does: each rounds in its own way
SHARDED: dict[str, dict[str, Any]] = {
    **{name: {"strategy": name} for name in CONTESTANTS[:-1]},
    **{
        f"zero{stage}": {"strategy": "deepspeed", "deepspeed_zero_stage": stage}
        for stage in (1, 2, 3)
    },
    "hsdp": {"strategy": "fsdp", "fsdp_shards": 2},
}


@with_lars
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param(
            name,
            ranks,
            marks=[pytest.mark.extended] * ((name, ranks) not in [("ddp", 2), ("hsdp", 4)]),
        )
        for name in SHARDED
        for ranks in (2, 4)
        if (name, ranks) != ("hsdp", 2)
    ],
)
def test_a_transformer_differs_by_what_another_order_of_sums_does(run, name, ranks):
    """Of its keys, biases have no gradient but rounding, which AdamW makes steps of full size."""
    fields = {**VIT, **SHARDED[name], "gpus_per_node": ranks}
    installed(fields["strategy"])
    alone = run("single", accumulation=ranks, **VIT)
    halves = {"local_batch_size": TINY["local_batch_size"] // 2, "base_lr": VIT["base_lr"] / 2}
    again = run("single", accumulation=2 * ranks, **{**VIT, **halves, **TWENTY_STEPS[ranks]})
    faster = run(**fields | {"base_lr": 1.01 * VIT["base_lr"]})
    assert falls([row.loss for row in alone.train])
    got, want, other, far = map(numbers, (run(**fields), alone, again, faster))
    keys = {one for one in want if one.endswith("attn.qkv.bias")}
    rest = want.keys() - keys
    assert_near(part(other, rest), part(want, rest), STATE_TOLERANCE)
    assert_near(part(got, rest), part(want, rest), STATE_TOLERANCE)
    assert_far(part(far, rest), part(want, rest), STATE_TOLERANCE)
    rounding = apart(part(other, keys), part(want, keys))
    assert_near(part(got, keys), part(want, keys), SPREAD * rounding)


def part(of: dict[str, torch.Tensor], names: Collection[str]) -> dict[str, torch.Tensor]:
    return {name: of[name] for name in names}


PLANTED = [
    # Whether the watch sees what a framework really does, it must show under every one.
    *((name, "rate_twice", "native", "same learning rate") for name in CONTESTANTS[:-1]),
    ("ddp", "second_zero_grad", "native", "gradients zeroed once"),
    ("ddp", "statistics_kept", "native", "batch statistics averaged"),
    ("ddp", "own_gradients", "native", "same final weights"),
    ("ddp", "", "native_last_batch_dropped", "only an incomplete last batch is dropped"),
]


@pytest.mark.parametrize(("strategy", "fault", "loader", "rule"), PLANTED)
def test_an_unfair_run_fails_and_names_the_rule(images, tmp_path, strategy, fault, loader, rule):
    name = f"{installed(strategy)}_{fault}".rstrip("_")
    directory = planned(tmp_path, images, strategy=name, loader=loader, gpus_per_node=2)
    with pytest.raises(LaunchError, match=f"FairnessError: fairness rule '{rule}"):
        run_ranks(directory)
    assert error_of(directory).kind == "FairnessError"


# What no single run shows: its rules are kept, and its loss falls.
UNFAIR = {
    "gradients summed": {"strategy": "ddp_gradients_summed"},
    "gradients 1 % larger": {"strategy": "ddp_gradients_larger"},
    "rate 1 % higher": {"strategy": "ddp", "base_lr": 1.01 * TINY["base_lr"]},
}


@pytest.mark.numeric
@pytest.mark.parametrize("name", UNFAIR)
def test_a_fault_that_no_single_run_shows_is_seen_by_comparison(run, name):
    got = run(**UNFAIR[name], **SPREADS["2 ranks, 2 micro-batches each"])
    want = reference(run, got)
    assert_far(numbers(got), numbers(want), STATE_TOLERANCE)
    assert_far(losses(got), losses(want), LOSS_TOLERANCE)
