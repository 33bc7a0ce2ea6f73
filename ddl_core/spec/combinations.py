"""Settings that a strategy cannot combine as the other strategies do.

Checked when runs are planned, and by a rank once it knows its device; not when a record is read.
"""

from typing import TYPE_CHECKING

from ddl_core.errors import SpecError

if TYPE_CHECKING:
    from ddl_core.spec.run import RunSpec


def check(run: "RunSpec", device: str) -> None:
    """Check the settings of a run's strategy against each other.

    Parameters
    ----------
    run : RunSpec
    device : str
        ``"cpu"`` or ``"cuda"``; ``"auto"`` where it is not known yet.

    Raises
    ------
    SpecError
        With the first combination that is refused, why, and what to use instead.
    """
    for refused, combination, remedy in {
        "ddp": _of_ddp,
        "fsdp": _of_fsdp,
        "deepspeed": _of_deepspeed,
    }.get(run.strategy, _of_others)(run, device):
        if refused:
            raise SpecError(f"{combination}; {remedy}")


Refusals = list[tuple[bool, str, str]]
"""Whether the run asks for it, the combination and why it is refused, what to use instead."""


def _of_others(_run: "RunSpec", _device: str) -> Refusals:
    return []


def _of_ddp(run: "RunSpec", device: str) -> Refusals:
    return [
        (
            run.ddp_compression == "bf16" and device == "cpu",
            "ddp_compression = 'bf16' needs NCCL on GPUs",
            "on the CPU use 'fp16' or 'none'",
        ),
        (
            run.ddp_static_graph and run.accumulation > 1,
            f"ddp_static_graph = true with accumulation = {run.accumulation}: torch's reducer then "
            "fails in the first step, or stops averaging gradients",
            "use accumulation = 1, or ddp_static_graph = false",
        ),
    ]


def _of_fsdp(run: "RunSpec", _device: str) -> Refusals:
    return [
        (
            run.precision == "fp16",
            "precision = 'fp16' with strategy 'fsdp': whether an update is skipped was never "
            "compared with the other strategies",
            "use 'bf16' or 'fp32'",
        ),
        (
            run.channels_last,
            "channels_last = true with strategy 'fsdp': it shards weights that lie in memory as "
            "NCHW only",
            "use channels_last = false",
        ),
        (
            run.compile,
            "compile = true with strategy 'fsdp' was never compared with the other strategies",
            "use compile = false",
        ),
        (
            run.optimizer != "sgd",
            f"optimizer = {run.optimizer!r} with strategy 'fsdp': it needs the norm of each layer, "
            "of which a rank has a part",
            "use optimizer = 'sgd'",
        ),
    ]


def _of_deepspeed(run: "RunSpec", _device: str) -> Refusals:
    stage = run.deepspeed_zero_stage
    buckets = run.deepspeed_bucket_elements
    default = type(run).model_fields["deepspeed_bucket_elements"].default
    return [
        (
            stage == 0 and buckets != default,
            f"deepspeed_bucket_elements = {buckets} has no effect at deepspeed_zero_stage = 0, "
            "whose buckets have a size of their own",
            "use stage 1, 2 or 3, or leave it out",
        ),
        (
            stage == 0 and run.deepspeed_overlap_comm,
            "deepspeed_overlap_comm = true has no effect at deepspeed_zero_stage = 0, which "
            "reduces gradients after backward",
            "use stage 1, 2 or 3, or leave it out",
        ),
        (
            stage > 0 and run.optimizer != "sgd",
            f"optimizer = {run.optimizer!r} with deepspeed_zero_stage = {stage}: it needs the norm "
            "of each layer, but ZeRO keeps the weights in one flat buffer",
            "use stage 0, or optimizer = 'sgd'",
        ),
        (
            stage == 3 and run.compile,
            "compile = true with deepspeed_zero_stage = 3: its hooks make the compiler begin anew "
            "at each layer",
            "use compile = false, or a lower stage",
        ),
        (
            stage > 0 and not run.decay_norm_bias,
            f"decay_norm_bias = false with deepspeed_zero_stage = {stage}: the checkpoint of a "
            "sharded optimiser holds one group of parameters only",
            "use stage 0, or decay_norm_bias = true",
        ),
        (
            stage > 0 and run.precision == "fp16",
            f"precision = 'fp16' with deepspeed_zero_stage = {stage}: ZeRO scales the loss by its "
            "own rule, so its steps would not be those of the other strategies",
            "use 'bf16', or stage 0",
        ),
        (
            stage > 0 and run.channels_last,
            f"channels_last = true with deepspeed_zero_stage = {stage}: ZeRO keeps the weights in "
            "one flat buffer and lays them out NCHW",
            "use stage 0, or channels_last = false",
        ),
    ]
