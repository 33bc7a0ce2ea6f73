"""What a search measures next, and what it may say: with made-up rates, and no run."""

from dataclasses import replace

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import LaunchError, SpecError
from ddl_tools.analysis import estimates
from ddl_tools.recommend import plan
from ddl_tools.recommend.plan import Known, Space, Verdict

DEFAULT = RunSpec(
    strategy="ddp", gpus_per_node=2, cpu_threads=1, local_batch_size=8, loader_workers=1, epochs=4,
    train_images=64, min_steps_per_epoch=2, eval_every=0, checkpoint_every=0, device="cpu",
)  # fmt: skip
LOADERS = [{"loader": name} for name in ("native", "turbo", "dali_cpu")]
SPACE = Space(
    DEFAULT,
    settings=[{"channels_last": True}],
    ranks=[{"gpus_per_node": 1, "strategy": "single", "cpu_threads": 2, "local_batch_size": 16}],
    strategies=["horovod", "fsdp"],
    loaders=LOADERS,
    larger=[16, 32, 64],
    compiles=True,
    images=1000,
)


SHORT = replace(
    SPACE,
    savings=[
        {"strategy": "ddp", "ddp_bucket_view": True},
        {"strategy": "deepspeed", "deepspeed_zero_stage": 2, "channels_last": False},
        {"strategy": "fsdp", "channels_last": False},
        {"strategy": "deepspeed", "deepspeed_zero_stage": 3, "channels_last": False},
        {"activation_checkpointing": True},
        {"strategy": "fsdp", "channels_last": False, "activation_checkpointing": True},
    ],
)


def memory(spec: RunSpec) -> float:
    """Return what a rank of two needs, in copies of the weights: those of AdamW and activations."""
    share = {"ddp": 5.0 - spec.ddp_bucket_view, "horovod": 5.0, "single": 4.0, "fsdp": 2.0}
    zero = {0: 5.0, 2: 2.5, 3: 2.0}
    state = share.get(spec.strategy) or zero[spec.deepspeed_zero_stage]
    return state + (1.0 if spec.activation_checkpointing else 3.0)


class Made:
    """A bench whose rates are functions of the configuration; all takes one second."""

    def __init__(self, rate, seconds=1000.0, failed=lambda spec: ""):
        self.known, self.left_s = Known(), seconds
        self.parts: list[RunSpec] = []
        self.blocks: list[list[RunSpec]] = []
        self._rate, self._failed = rate, failed

    def cost_s(self, spec):
        return 1.0

    def block_s(self, block):
        return float(len(block))

    def measure_parts(self, parts):
        for spec in parts:
            if spec not in self.parts:
                self.parts.append(spec)
                self._measure(spec, self.known.rates)

    def measure_block(self, block):
        self.blocks.append(list(block))
        for spec in block:
            starts = self.known.starts.setdefault(spec, {})
            self._measure(spec, {})
            if spec not in self.known.failed:
                starts[f"{len(self.blocks)}"] = self._rate(spec)

    def _measure(self, spec, rates):
        self.left_s -= 1
        if why := self._failed(spec):
            self.known.failed[spec] = why
        else:
            own = spec.model_copy(update={"repeat": 0})
            rates[own] = max(self._rate(spec), rates.get(own, 0.0))


def rate(spec: RunSpec) -> float:
    """Return 100 for the default's training; NHWC helps, and turbo is the fastest loader."""
    loading = {"native": 120, "turbo": 400, "dali_cpu": 300, "synthetic": 10**6}[spec.loader]
    training = 100 * (1.5 if spec.channels_last else 1) * (0.8 if spec.strategy == "horovod" else 1)
    training *= {8: 1, 16: 1.2, 32: 1.22, 64: 1.22}[spec.global_batch_size // 2]
    training *= 1.6 if spec.compile else 1
    return float(loading if spec.work == "load" else min(loading, training))


def searched(made: Made, space: Space = SPACE) -> Made:
    plan.search(space, made)
    return made


def test_parts_are_measured_before_anything_whole() -> None:
    made = searched(Made(rate))
    assert all(spec.loader == "synthetic" or spec.work == "load" for spec in made.parts)
    assert len(made.parts) == len(set(made.parts)) > 8
    assert {spec.loader for spec in made.parts if spec.work == "load"} == {
        "native", "turbo", "dali_cpu",
    }  # fmt: skip
    assert all(spec.loader != "synthetic" and spec.work == "train"
               for block in made.blocks for spec in block)  # fmt: skip


def test_changes_that_help_only_together_are_found() -> None:
    """The native loader hides what a faster training brings, and the other way round."""
    made = searched(Made(rate))
    leader = plan.ranking(SPACE, made.known)[0]
    assert (leader.loader, leader.channels_last, leader.compile) == ("turbo", True, True)
    ratio = made.known.ratio(leader, DEFAULT)
    assert ratio.value == pytest.approx(2.4)
    assert plan.verdict(ratio) == Verdict.PROVEN


def test_each_block_has_the_default_and_few_rivals() -> None:
    made = searched(Made(rate))
    assert {block[0] for block in made.blocks} == {DEFAULT}
    sizes = [len([one for one in block if one.global_batch_size == 16]) for block in made.blocks]
    assert max(sizes) <= 1 + plan.RIVALS
    assert len(made.blocks) == plan.MOST_STARTS


@pytest.mark.parametrize("seconds", [26, 30, 40])
def test_little_time_is_kept_for_starts_that_prove(seconds: int) -> None:
    made = searched(Made(rate, seconds=seconds))
    leader = plan.ranking(SPACE, made.known)[0]
    assert len(made.known.starts[leader]) >= plan.STARTS
    assert made.left_s >= 0


@pytest.mark.parametrize(("seconds", "times"), [(1000, 2), (40, 1)])
def test_parts_are_measured_twice_where_that_is_cheap(seconds: int, times: int) -> None:
    """Another program may have slowed the first time: the higher rate counts."""

    def disturbed(spec: RunSpec) -> float:
        return rate(spec) * (1 if spec.repeat else 0.4)

    made = searched(Made(disturbed, seconds))
    assert len(made.parts) == times * len({one.model_copy(update={"repeat": 0})
                                           for one in made.parts})  # fmt: skip
    assert made.known.rates[plan.training_alone(DEFAULT, SPACE)] == pytest.approx(
        100 if times == 2 else 40
    )


def test_every_loader_that_is_fast_enough_is_started_in_the_first_block() -> None:
    """What a loader takes from a training, no part shows."""
    made = searched(Made(lambda spec: 900.0 if spec.work == "load" else 100.0, seconds=40))
    assert {one.loader for one in made.blocks[0]} == {"native", "turbo", "dali_cpu"}


@pytest.mark.parametrize(("gain", "chosen"), [(1.04, "ddp"), (1.10, "horovod")])
def test_another_strategy_has_to_be_worth_it(gain: float, chosen: str) -> None:
    def almost(spec: RunSpec) -> float:
        return rate(spec) * (gain / 0.8 if spec.strategy == "horovod" else 1.0)

    made = searched(Made(almost))
    assert {one.strategy for one in made.parts if one.compile} == {chosen}


def test_more_processes_are_tried_where_a_loader_limits() -> None:
    made = searched(Made(rate))
    assert {one.loader for one in made.parts if one.loader_workers == 2} == {"native"}


def test_a_strategy_that_the_fastest_arithmetic_excludes_is_told() -> None:
    made = searched(Made(rate))
    assert {name: why for name, why in plan.refused(SPACE, made.known).items()
            if "channels_last = true" in why}.keys() == {"fsdp"}  # fmt: skip


def test_a_default_that_fails_as_a_whole_is_an_error() -> None:
    with pytest.raises(LaunchError, match=r"the default cannot run, .*: no memory"):
        searched(Made(rate, failed=lambda spec: "no memory" * (spec == DEFAULT)))


def test_a_default_that_fails_once_costs_no_answer() -> None:
    made = searched(Made(rate))
    made.known.failed[DEFAULT], made.left_s = "a rank was killed", 10.0
    searched(made)
    assert plan.ranking(SPACE, made.known)


def test_whole_configurations_and_their_loaders_read_uncached() -> None:
    """Synthetic images are never on a disk."""
    space = replace(SPACE, default=DEFAULT.model_copy(update={"uncached": True}))
    made = searched(Made(rate), space)
    assert {one.loader for one in made.parts if not one.uncached} == {"synthetic"}
    assert all(one.uncached for block in made.blocks for one in block)


def test_batches_double_until_little_is_gained() -> None:
    made = searched(Made(rate))
    tried = {spec.local_batch_size for spec in made.parts if spec.gpus_per_node == 2}
    assert tried == {8, 16, 32}
    leader = plan.ranking(SPACE, made.known)[0]
    larger = plan.larger_batch(SPACE, made.known, leader)
    assert (larger.local_batch_size, larger.base_lr) == (16, 2 * DEFAULT.base_lr)
    assert larger in made.known.starts
    assert larger not in plan.ranking(SPACE, made.known)


def test_an_out_of_memory_is_a_result() -> None:
    made = searched(Made(rate, failed=lambda spec: "memory" * (spec.local_batch_size >= 16)))
    assert all(spec.global_batch_size == 16 for block in made.blocks for spec in block)
    assert plan.larger_batch(SPACE, made.known, plan.ranking(SPACE, made.known)[0]) is None


def test_a_loader_that_limits_ends_the_search_for_a_faster_training() -> None:
    slow = [{"loader": "native"}]
    made = searched(Made(rate), Space(DEFAULT, SPACE.settings, loaders=slow, compiles=True,
                                      larger=SPACE.larger))  # fmt: skip
    assert not any(spec.compile or spec.local_batch_size > 8 for spec in made.parts)


def test_a_second_call_goes_on_with_what_is_known() -> None:
    made = searched(Made(rate))
    parts, blocks = len(made.parts), len(made.blocks)
    made.left_s = 1000.0
    searched(made)
    assert len(made.parts) == parts
    assert len(made.blocks) == blocks + plan.MOST_STARTS
    assert made.blocks[blocks][1] == plan.ranking(SPACE, made.known)[0]


def test_a_configuration_that_fails_is_not_tried_again() -> None:
    def failed(spec: RunSpec) -> str:
        return "no" if spec.loader == "turbo" and spec.work == "train" else ""

    made = searched(Made(rate, failed=failed))
    tried = [spec for block in made.blocks for spec in block if spec.loader == "turbo"]
    assert len(tried) == len(set(tried)) > 0
    assert plan.ranking(SPACE, made.known)[0].loader == "dali_cpu"


def test_too_little_time_says_how_much_would_do() -> None:
    with pytest.raises(SpecError, match=r"too short to compare .*; .* needs 1 more minute$"):
        searched(Made(rate, seconds=2.0))


def test_without_a_training_the_first_failure_is_told() -> None:
    with pytest.raises(LaunchError, match="nothing can be trained here: misspelt"):
        searched(Made(rate, failed=lambda spec: "misspelt"))


@pytest.mark.parametrize(
    ("ratios", "others", "said"),
    [
        ([1.30, 1.28, 1.31], 0.0, Verdict.PROVEN),
        ([1.30, 1.28, 1.31], 0.5, Verdict.PROVEN),
        ([1.30, 1.28], 0.0, Verdict.UNPROVEN),
        ([1.6, 0.9, 1.3], 0.0, Verdict.UNPROVEN),
        ([1.6, 0.9, 1.3], 0.5, Verdict.DISTURBED),
        ([1.02, 0.99, 1.01], 0.0, Verdict.DEFAULT),
        ([0.7, 0.72, 0.71], 0.0, Verdict.DEFAULT),
        ([], 0.0, Verdict.DEFAULT),
    ],
)
def test_the_verdict(ratios: list[float], others: float, said: Verdict) -> None:
    assert plan.verdict(estimates.middle(ratios), others) == said


def test_more_processes_that_promise_nothing_come_last() -> None:
    """Also once all else with their loader was started."""
    trained = plan.arithmetics(SPACE)
    loaded = [plan.loading_alone(trained[0], SPACE, level) for level in LOADERS]
    twice = loaded[1].model_copy(update={"loader_workers": 2})
    known = Known(rates=dict.fromkeys(trained, 100.0) | dict.fromkeys([*loaded, twice], 400.0))
    for started in (DEFAULT, *(plan.whole(one, loaded[1], SPACE) for one in trained)):
        known.starts[started] = {"block": 90.0}
    workers = [spec.loader_workers for spec in plan.rivals(SPACE, known)]
    assert workers == sorted(workers)
    assert set(workers) == {1, 2}


@pytest.mark.parametrize(
    ("copies", "strategy", "stage", "recomputes", "left"),
    [
        (8.0, "ddp", 0, False, 0),
        (7.0, "ddp", 0, False, 3),
        (6.0, "deepspeed", 2, False, 2),
        (5.0, "fsdp", 0, False, 1),
        (3.0, "fsdp", 0, True, 0),
    ],
)
def test_the_cheapest_saving_that_fits_becomes_the_default(
    copies: float, strategy: str, stage: int, recomputes: bool, left: int
) -> None:
    tried: list[RunSpec] = []

    def trains(spec: RunSpec) -> bool:
        tried.append(spec)
        return memory(spec) <= copies

    space = plan.fitting(SHORT, trains)
    assert space is not None
    default = space.default
    found = default.strategy, default.deepspeed_zero_stage, default.activation_checkpointing
    assert found == (strategy, stage, recomputes)
    assert len(space.savings) == left, "of those that recompute as little"
    assert tried[0] == DEFAULT
    assert tried[-1] == default
    assert {one.global_batch_size for one in tried} == {16}


def test_nothing_that_fits_is_no_default() -> None:
    tried: list[RunSpec] = []
    assert plan.fitting(SHORT, tried.append) is None
    assert len(tried) == 1 + len(SHORT.savings)


@pytest.mark.parametrize("fastest", ["fsdp", "deepspeed"])
def test_a_search_with_too_little_memory_compares_what_shards(fastest: str) -> None:
    """The first that fits is compared with those that shard more: they may be faster."""

    def sharded(spec: RunSpec) -> float:
        return rate(spec) * (1.4 if spec.strategy == fastest and spec.work == "train" else 1.0)

    space = plan.fitting(SHORT, lambda spec: memory(spec) <= 5.5)
    assert space is not None
    made = searched(
        Made(sharded, failed=lambda spec: "out of memory" * (memory(spec) > 5.5)), space
    )
    leader = plan.ranking(space, made.known)[0]
    assert leader.strategy == fastest
    assert leader.loader == "turbo"
    assert {one.strategy for block in made.blocks for one in block} <= {"deepspeed", "fsdp"}


def test_the_arithmetic_of_a_sharded_default_keeps_what_it_can() -> None:
    """FSDP refuses channels_last, but not bf16, which is of the same level."""
    fsdp = RunSpec.parse(DEFAULT.model_dump() | {"strategy": "fsdp", "device": "cuda"})
    level = {"precision": "bf16", "channels_last": True}
    trained = plan.arithmetics(replace(SPACE, default=fsdp, settings=[level]))
    assert [(one.precision, one.channels_last) for one in trained] == [
        ("fp32", False),
        ("bf16", False),
    ]
    assert len(plan.arithmetics(replace(SPACE, default=fsdp))) == 1, "without a change, no part"


def test_another_strategy_leaves_the_settings_of_the_one_before() -> None:
    view = plan.changed(DEFAULT, {"ddp_bucket_view": True})
    (other,) = plan.changed(*view, {"strategy": "fsdp"})
    assert (other.strategy, other.ddp_bucket_view) == ("fsdp", False)
