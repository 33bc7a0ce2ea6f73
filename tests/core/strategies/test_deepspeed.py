"""DeepSpeed: its configuration, equal results under every ZeRO stage, life after faults."""

from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.strategies.deepspeed import configuration
from tests.core.strategies.deepspeed_ranks import SLEPT_S, STEPS
from tests.core.strategies.two_ranks import (
    check_like_one_process,
    check_resumed,
    check_unfair_is_far,
    left,
    start,
)


def settings(**fields) -> dict:
    return configuration(RunSpec(strategy="deepspeed", **fields))


def test_the_configuration_follows_from_the_run_alone():
    assert settings(local_batch_size=32, accumulation=4) == {
        "train_micro_batch_size_per_gpu": 32,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.0,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {"stage": 0, "overlap_comm": False},
    }
    sharded = settings(deepspeed_zero_stage=2, deepspeed_overlap_comm=True, precision="bf16")
    assert sharded["zero_optimization"] == {
        "stage": 2,
        "overlap_comm": True,
        "compute_grad_norm": False,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
    }
    assert sharded["zero_allow_untested_optimizer"] is True
    assert sharded["torch_autocast"]["dtype"] == "bfloat16"
    assert sharded["torch_autocast"]["lower_precision_safe_modules"] == []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_buckets_are_deepspeeds_own_until_others_are_asked_for(stage):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    def sizes(**fields) -> dict[str, int]:
        zero = settings(deepspeed_zero_stage=stage, **fields)["zero_optimization"]
        found = DeepSpeedZeroConfig(**zero).model_dump()
        return {
            name: value
            for name, value in found.items()
            if any(one in name for one in ("bucket", "max", "param_persistence"))
        }

    defaults = DeepSpeedZeroConfig(stage=stage, overlap_comm=False).model_dump()
    assert sizes().items() <= defaults.items()
    few = sizes(deepspeed_bucket_elements=1000)
    assert few["reduce_bucket_size"] == 1000
    if stage == 3:
        assert few["max_live_parameters"] == few["max_reuse_distance"] == 2000
        assert few["prefetch_bucket_size"] == 100
        assert few["param_persistence_threshold"] == 0  # all weights are shared out
    else:
        assert few["allgather_bucket_size"] == 1000


# Repeated under other instruction sets: the rest is the same arithmetic, shared out differently.
REPEATED = [
    {"deepspeed_zero_stage": 2, "accumulation": 2},
    {"deepspeed_zero_stage": 0, "precision": "bf16"},
]
# Each stage, several buckets, overlap, a half precision and accumulation at least once.
IN_EVERY_RUN = [
    *REPEATED,
    {"deepspeed_zero_stage": 0},
    {"deepspeed_zero_stage": 1},
    {"deepspeed_zero_stage": 3, "accumulation": 2, "deepspeed_overlap_comm": True},
    {"deepspeed_zero_stage": 3, "deepspeed_bucket_elements": 1000},  # several a step
    {"deepspeed_zero_stage": 0, "channels_last": True},
    {"deepspeed_zero_stage": 1, "momentum": 0.0},
]
CASES = [
    *IN_EVERY_RUN,
    {"deepspeed_zero_stage": 2},
    {"deepspeed_zero_stage": 3},
    {"deepspeed_zero_stage": 0, "accumulation": 2},
    {"deepspeed_zero_stage": 1, "accumulation": 2},
    {"deepspeed_zero_stage": 1, "accumulation": 2, "deepspeed_overlap_comm": True},
    {"deepspeed_zero_stage": 2, "accumulation": 2, "deepspeed_overlap_comm": True},
    {"deepspeed_zero_stage": 2, "deepspeed_bucket_elements": 1000},
    {"deepspeed_zero_stage": 3, "momentum": 0.0},
    {"deepspeed_zero_stage": 2, "precision": "bf16"},
    {"deepspeed_zero_stage": 3, "precision": "bf16"},
    {"deepspeed_zero_stage": 0, "precision": "fp16"},  # DeepSpeed never forgets half precision
]


def named(case: int) -> str:
    return "-".join(f"{k.removeprefix('deepspeed_')}={v}" for k, v in CASES[case].items())


def marked(case: int) -> Any:
    marks = [pytest.mark.multiprocess, pytest.mark.slow]
    marks += [pytest.mark.extended] * (case >= len(IN_EVERY_RUN))
    marks += [pytest.mark.numeric] * (case < len(REPEATED))
    return pytest.param(case, marks=marks)


all_cases = [marked(case) for case in range(len(CASES))]
every_case = pytest.mark.parametrize("case", all_cases, ids=named)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request) -> dict[int, list[dict]]:
    """Results of each case and rank: one start of two processes for all that are asked for."""
    cases = sorted(
        {
            item.callspec.params["case"]
            for item in request.session.items
            if item.module is request.module and "trained" in item.fixturenames
        }
    )
    out = tmp_path_factory.mktemp("deepspeed")
    home = out / "home"
    home.mkdir()
    said = start("deepspeed_ranks", [CASES[case] for case in cases], out, HOME=str(home))
    assert said == ""  # nothing that alarms
    assert list(home.iterdir()) == []
    return {case: left(out, number) for number, case in enumerate(cases)}


@every_case
def test_two_ranks_train_like_one_process_that_accumulates(trained, case):
    check_like_one_process(trained[case], CASES[case])


@every_case
def test_rank_0_alone_keeps_what_was_gathered(trained, case):
    stage = CASES[case]["deepspeed_zero_stage"]
    kept = trained[case][1]["undisturbed"]
    assert (kept["weights"]["0.weight"].numel() == 0) == (stage == 3)
    momenta = [one["momentum_buffer"] for one in kept["optimizer"]["state"].values()]
    gathered = [one for one in momenta if one is not None and stage]
    assert all(one.numel() == 0 for one in gathered)


@every_case
def test_a_rate_one_percent_higher_is_seen(trained, case):
    check_unfair_is_far(trained[case], CASES[case])


@every_case
def test_each_update_is_one_step_and_waits_for_nothing(trained, case):
    for rank in trained[case]:
        got = rank["undisturbed"]
        assert got["steps"] == 2 * STEPS
        assert (got["timer"], got["synchronised"]) == (False, False)
        # fp16 needs to know, under every strategy, whether a gradient is infinite.
        # Stage 3 reads the norm of the gradients, whatever it is told.
        waits = CASES[case].get("precision") == "fp16" or CASES[case]["deepspeed_zero_stage"] == 3
        assert got["waits"] == (STEPS if waits else 0)


@every_case
def test_a_reduction_that_backward_waits_for_is_not_booked_as_computing(trained, case):
    stage = CASES[case]["deepspeed_zero_stage"]
    waits = stage > 1 or CASES[case].get("deepspeed_overlap_comm", False)
    for rank in trained[case]:
        spent = rank["undisturbed"]["spent"]
        assert (spent is None) == (waits or stage == 0)  # of stage 0 none was slowed down
        assert spent is None or spent["transfer_s"] + spent["waiting_s"] > STEPS * SLEPT_S


@every_case
def test_what_it_says_of_its_communication_is_what_it_does(trained, case):
    stage = CASES[case]["deepspeed_zero_stage"]
    for rank in trained[case]:
        told = rank["undisturbed"]["communication"]
        assert (told["library"], told["dtype"]) == ("gloo", "float32")
        assert told["overlap"] is CASES[case].get("deepspeed_overlap_comm", False)
        assert told["bucket_elements"] == CASES[case].get("deepspeed_bucket_elements", 500_000_000)
        assert ("allgather_bucket_elements" in told) == (stage in (1, 2))
        assert ("kept_elements" in told) == (stage == 3)
        assert rank["undisturbed"]["reduced_by"] == (None if stage else told["bucket_elements"])


@every_case
def test_a_resumed_run_ends_with_the_same_bits(trained, case):
    check_resumed(trained[case])
