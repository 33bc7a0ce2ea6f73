"""DeepSpeed: its configuration."""

import pytest

from ddl_core.config import RunSpec
from ddl_core.strategies.deepspeed import configuration


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


def test_the_norm_of_the_gradients_is_computed_only_to_clip():
    assert settings(clip_grad_norm=2.0)["gradient_clipping"] == 2.0
    clipped = settings(deepspeed_zero_stage=1, clip_grad_norm=2.0)
    assert clipped["gradient_clipping"] == 2.0
    assert clipped["zero_optimization"]["compute_grad_norm"] is True


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
