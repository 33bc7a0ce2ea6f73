"""Two ranks under every strategy: results of one process, and of a run that was not stopped.

Of hybrid sharding two groups of two ranks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddl_core import combinations
from ddl_core.errors import SpecError
from tests.closeness import assert_far
from tests.core.strategies.conftest import STRATEGIES, on
from tests.core.strategies.deepspeed_ranks import SLEPT_S
from tests.core.strategies.two_ranks import (
    STEPS,
    Fields,
    check_like_one_process,
    check_resumed,
    check_unfair_is_far,
    left,
    momenta,
    numbers,
    single,
    size,
    spec,
    start,
    tolerances,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

ALL: dict[str, Fields] = {**STRATEGIES, "hsdp": {"strategy": "fsdp", "fsdp_shards": 2}}
# The first six in every run, under each strategy. AdamW takes no notice of the size of gradients.
SETTINGS: list[Fields] = [
    {},
    {"accumulation": 2},
    {"precision": "bf16"},
    {"optimizer": "adamw", "accumulation": 2},
    {"clip_grad_norm": 0.2, "accumulation": 2},
    {"activation_checkpointing": True, "accumulation": 2},
    {"activation_checkpointing": True, "precision": "bf16"},
    {"momentum": 0.0},
    {"precision": "bf16", "accumulation": 2},
    {"decay_norm_bias": False},
    {"clip_grad_norm": 0.2, "precision": "bf16"},
    {"compile": True, "accumulation": 2},
    {"compile": True, "activation_checkpointing": True, "accumulation": 2},
]
# Of DeepSpeed alone; the first three in every run.
OF_DEEPSPEED: list[tuple[str, Fields]] = [
    ("zero3", {"accumulation": 2, "deepspeed_overlap_comm": True}),
    ("zero3", {"deepspeed_bucket_elements": 1000}),  # several a step
    ("zero0", {"channels_last": True}),
    ("zero1", {"accumulation": 2, "deepspeed_overlap_comm": True}),
    ("zero2", {"accumulation": 2, "deepspeed_overlap_comm": True}),
    ("zero2", {"deepspeed_bucket_elements": 1000}),
    ("zero0", {"precision": "fp16"}),  # DeepSpeed never forgets half precision: the last two
    ("zero0", {"precision": "fp16", "clip_grad_norm": 0.2}),
]
OFTEN, OFTEN_OF_DEEPSPEED = 6, 3
COMPILED = ("fsdp", SETTINGS[-1])  # in every run too
# Repeated under other instruction sets: the rest is the same arithmetic, shared out differently.
REPEATED = ["zero2-accumulation=2", "zero0-precision=bf16", "horovod"]


def is_allowed(fields: Fields) -> bool:
    """Return whether a run may have these settings together."""
    try:
        combinations.check(spec(gpus_per_node=size(fields), **fields), "cpu")
    except SpecError:
        return False
    return True


def marked(name: str, setting: Fields, often: bool) -> Any:
    words = (f"{key.removeprefix('deepspeed_')}={value}" for key, value in setting.items())
    title = "-".join([name, *words])
    marks = [pytest.mark.extended] * (not often) + [pytest.mark.numeric] * (title in REPEATED)
    return on({**ALL[name], **setting}, *marks, name=title)


CASES = [
    *(
        marked(name, one, at < OFTEN or (name, one) == COMPILED)
        for name, fields in ALL.items()
        for at, one in enumerate(SETTINGS)
        if is_allowed({**fields, **one})
    ),
    *(marked(name, one, at < OFTEN_OF_DEEPSPEED) for at, (name, one) in enumerate(OF_DEEPSPEED)),
]


def only(name: str, compiled: bool = True) -> Any:
    """Return the cases of a strategy; without `compiled`, those that nothing compiles."""
    own = [case for case in CASES if case.values[0]["strategy"] == name]
    own = [case for case in own if compiled or "compile" not in case.values[0]]
    return pytest.mark.parametrize("case", own)


of_deepspeed, of_fsdp = only("deepspeed"), only("fsdp")


CASES_IN_ORDER: list[Fields] = [case.values[0] for case in CASES]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Fields:
    """The fields of a strategy and a setting."""
    fields: Fields = request.param
    return fields


@pytest.fixture(scope="module")
def started(request, tmp_path_factory) -> Callable[[Fields], list[dict]]:
    """Return what the ranks left of a case; one start of two ranks for all of a strategy."""
    asked = [item.callspec.params["case"] for item in request.session.items
             if item.path == request.node.path]  # fmt: skip
    done: dict[tuple[str, int], tuple[list[Fields], Path]] = {}

    def of(case: Fields) -> list[dict]:
        name = case["strategy"], size(case)
        if name not in done:
            cases = [one for one in CASES_IN_ORDER if one in asked
                     and (one["strategy"], size(one)) == name]  # fmt: skip
            out = tmp_path_factory.mktemp(case["strategy"])
            home = out / "home"
            home.mkdir()
            said = start(cases, out, HOME=str(home))
            if case["strategy"] == "deepspeed":
                assert said == ""  # nothing that alarms
                assert list(home.iterdir()) == []
            done[name] = cases, out
        cases, out = done[name]
        return left(out, cases.index(case))

    return of


@pytest.fixture
def trained(started, case) -> list[dict]:
    """What the two ranks left of a case."""
    return started(case)


def test_two_ranks_train_like_one_process_that_accumulates(trained, case) -> None:
    check_like_one_process(trained, case)


def test_a_rate_one_percent_higher_is_seen(trained, case) -> None:
    check_unfair_is_far(trained, case)


def test_a_norm_one_percent_larger_is_seen(trained, case) -> None:
    """Each update is clipped, so that the norm has a say in all of them."""
    if limit := case.get("clip_grad_norm"):
        other = single({**case, "clip_grad_norm": 1.01 * limit})
        got = trained[0]["undisturbed"]
        assert_far(numbers(other), numbers(got), tolerances(case)[1])


def test_a_resumed_run_ends_with_the_same_bits(trained) -> None:
    check_resumed(trained)


@of_deepspeed
def test_rank_0_alone_keeps_what_stage_3_gathered(trained, case):
    stage = case["deepspeed_zero_stage"]
    kept = trained[1]["undisturbed"]
    assert (kept["weights"]["0.0.weight"].numel() == 0) == (stage == 3)
    assert all((one.numel() == 0) == (stage > 0) for one in momenta(kept).values())


@of_deepspeed
def test_each_update_is_one_step_and_waits_for_nothing(trained, case):
    for rank in trained:
        got = rank["undisturbed"]
        assert got["steps"] == 2 * STEPS
        assert (got["timer"], got["synchronised"]) == (False, False)
        # fp16 needs to know, under every strategy, whether a gradient is infinite.
        # Stage 3 reads the norm of the gradients, whatever it is told; to clip, 1 and 2 as well.
        stage, clips = case["deepspeed_zero_stage"], "clip_grad_norm" in case
        waits = case.get("precision") == "fp16" or stage == 3
        if stage and clips:
            assert got["waits"] >= STEPS
        elif case.get("optimizer") != "adamw":  # which counts updates in main memory
            assert got["waits"] == (STEPS if waits else 0)


@of_deepspeed
def test_a_reduction_that_backward_waits_for_is_not_booked_as_computing(trained, case):
    stage = case["deepspeed_zero_stage"]
    waits = stage > 1 or case.get("deepspeed_overlap_comm", False)
    for rank in trained:
        spent = rank["undisturbed"]["spent"]
        assert (spent is None) == (waits or stage == 0)  # of stage 0 none was slowed down
        assert spent is None or spent["transfer_s"] + spent["waiting_s"] > STEPS * SLEPT_S


@of_deepspeed
def test_what_it_says_of_its_communication_is_what_it_does(trained, case):
    stage = case["deepspeed_zero_stage"]
    for rank in trained:
        told = rank["undisturbed"]["communication"]
        assert (told["library"], told["dtype"]) == ("gloo", "float32")
        assert told["overlap"] is case.get("deepspeed_overlap_comm", False)
        assert told["bucket_elements"] == case.get("deepspeed_bucket_elements", 500_000_000)
        assert ("allgather_bucket_elements" in told) == (stage in (1, 2))
        assert ("kept_elements" in told) == (stage == 3)
        assert rank["undisturbed"]["reduced_by"] == (None if stage else told["bucket_elements"])


@of_fsdp
def test_rank_0_alone_keeps_what_was_gathered(trained) -> None:
    kept = trained[1]["undisturbed"]
    assert {kept["weights"][name].numel() for name in ("0.0.weight", "4.bias")} == {0}
    assert not any(one.numel() for one in momenta(kept).values())


@of_fsdp
def test_each_rank_keeps_its_part(trained) -> None:
    first, second = (rank["undisturbed"] for rank in trained[:2])
    assert first["units"] > 2
    assert first["kept"] + second["kept"] == first["whole"] == second["whole"]
    assert max(first["kept"], second["kept"]) < 0.7 * first["whole"]


@of_fsdp
def test_ranks_of_the_same_place_keep_the_same_and_differing_copies_are_seen(trained, case) -> None:
    kept = [rank["undisturbed"]["kept"] for rank in trained]
    assert kept[:2] * (len(kept) // 2) == kept
    before, after = zip(*(rank["undisturbed"]["hashes"] for rank in trained), strict=True)
    assert len(set(before)) == 1
    # The last rank then changed its own part, of the last copy.
    assert [one == two for one, two in zip(before, after, strict=True)] == [
        *[True] * (len(kept) - 2), False, False
    ]  # fmt: skip
    told = trained[0]["undisturbed"]["communication"]
    assert told.get("shards") == case.get("fsdp_shards")


@of_fsdp
def test_no_state_is_gathered_by_the_collective_that_crashed(trained) -> None:
    """See `fsdp._whole`."""
    assert all(not rank["undisturbed"]["gathers"] for rank in trained)


@only("fsdp", compiled=False)  # a compiled block has no layers that could be watched
def test_weights_are_gathered_as_they_are_computed_with(trained, case) -> None:
    """Autocast makes no copy of weights that come in its type, and takes normalisation in fp32."""
    half = case.get("precision") == "bf16"
    for rank in trained:
        computed = rank["undisturbed"]["computed"]
        assert computed["BatchNorm2d"] == ["torch.float32"]
        want = ["torch.bfloat16" if half else "torch.float32"]
        assert computed["Conv2d"] == computed["Linear"] == want


@of_fsdp
def test_no_weight_is_gathered_inside_a_compiled_block(trained, case) -> None:
    """There the compiler would stop, and begin anew after it."""
    want = [] if case.get("compile") else None
    assert all(rank["undisturbed"]["breaks"] == want for rank in trained)


@of_fsdp
def test_a_network_goes_on_in_the_type_that_one_process_has(trained, case) -> None:
    for rank in trained:
        alone, sharded = rank["undisturbed"]["goes_on_in"]
        assert sharded == alone
