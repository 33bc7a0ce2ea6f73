"""Settings that a run cannot combine: a condition, the reason, and what to use instead.

Checked when a run is planned, and by a rank once it knows its device; not when a record is read.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from ddl_core.errors import SpecError
from ddl_core.registry import COMMAND, EXTENSIBLE, FRAMEWORKS, LOADERS, REGISTRIES, known, owner
from ddl_core.retired import NAMES as RETIRED

if TYPE_CHECKING:
    from ddl_core.config import RunSpec

# Settings that other frameworks do not have.
TORCH_ONLY = (
    *("work", "accumulation", "precision", "channels_last", "compile", "nesterov"),
    *("precise_bn", "profile_steps", "micro_batches_per_pass", "clip_grad_norm"),
    "activation_checkpointing",
)
# What a command of the user's is started with.
OF_COMMAND = (
    *("framework", "strategy", "loader", "command", "nodes", "gpus_per_node", "device"),
    *("oversubscribe", "epochs", "discard_steps", "second_start", "seed", "repeat"),
)
ON = range(1, 2**63)
MANY = range(2, 2**63)
YES, NO = (True,), (False,)
SHARDED = (1, 2, 3)
FSDP = ("fsdp",)
BY_LAYER = ("lars", "lamb")
DALI = [name for name in LOADERS if name.startswith("dali")]

Dependent = tuple[tuple[str, str, Collection[Any]], ...]
# Fields, or beginnings of fields, that have an effect only where another has one of these values.
DEPENDENT: Dependent = (
    ("ddp_powersgd_", "ddp_compression", ("powersgd",)),
    ("deepspeed_bucket_elements", "deepspeed_zero_stage", SHARDED),
    ("deepspeed_overlap_comm", "deepspeed_zero_stage", SHARDED),
    ("dali_decode", "loader", ("dali_gpu",)),
    ("momentum", "optimizer", ("sgd", "lars")),
    ("adam_", "optimizer", ("adamw",)),
    ("clip_grad_norm", "optimizer", ("sgd", "lars", "adamw")),  # LAMB clips by itself
)

_WHOLE_LAYERS = "it needs the norms of whole layers"

Refused = tuple[tuple[dict[str, Collection[Any]], str, str], ...]
# What is refused: values that fields may not have together, why, and what to use instead.
REFUSED: Refused = (
    (
        {"strategy": ["single"], "world_size": MANY},
        "it is one process",
        "use 'ddp', or accumulation in place of ranks",
    ),
    ({"loader": ["synthetic"], "uncached": YES}, "it reads no files", "leave it out"),
    ({"loader": ["memory"], "uncached": YES}, "it reads files once", "leave it out"),
    ({"loader": ["synthetic"], "work": ["load"]}, "nothing waits for it", "use another loader"),
    ({"loader": ["dali_gpu"], "device": ["cpu"]}, "it needs a GPU", "use 'dali_cpu'"),
    ({"loader": DALI, "loader_workers": [0]}, "DALI needs at least one thread", "use 1 or more"),
    ({"profile_steps": ON, "work": ["load"]}, "nothing is trained", "leave one out"),
    (
        {"profile_steps": ON, "epochs": [1]},
        "the last epoch is profiled, and does not count",
        "use 2 epochs at least, or 3 for a throughput as well",
    ),
    (
        {"min_steps_per_epoch": ON, "eval_every": ON},
        "an epoch may take the images several times, and accuracy is given by pass",
        "set one of them to 0",
    ),
    ({"precise_bn": YES, "eval_every": [0]}, "nothing is evaluated", "set eval_every to 1 or more"),
    ({"precise_bn": YES, "work": ["load"]}, "nothing is evaluated", "leave it out"),
    ({"precise_bn": YES, "compile": YES}, "it would compile again", "use compile = false"),
    ({"activation_checkpointing": YES, "work": ["load"]}, "nothing is trained", "leave it out"),
    (
        {"nesterov": YES, "optimizer": ["lamb", "adamw"]},
        "it has no Nesterov momentum",
        "use 'sgd' or 'lars'",
    ),
    ({"nesterov": YES, "momentum": [0]}, "it needs momentum", "use momentum > 0"),
    (
        {"ddp_compression": ["powersgd"], "precision": ["fp16"]},
        "gradients that overflow once would stay in what it has not sent yet",
        "use precision 'bf16' or 'fp32', or ddp_compression 'fp16'",
    ),
    (
        {"ddp_compression": ["powersgd"], "checkpoint_every": ON},
        "no checkpoint holds what a rank has not sent yet",
        "set checkpoint_every to 0",
    ),
    (
        {"strategy": FSDP, "precision": ["fp16"]},
        "skipped updates were never compared with other strategies",
        "use 'bf16' or 'fp32'",
    ),
    ({"strategy": FSDP, "channels_last": YES}, "it shards NCHW only", "use channels_last = false"),
    ({"strategy": FSDP, "optimizer": BY_LAYER}, _WHOLE_LAYERS, "use optimizer = 'sgd' or 'adamw'"),
    (
        {"deepspeed_zero_stage": SHARDED, "optimizer": BY_LAYER},
        _WHOLE_LAYERS,
        "use stage 0, or optimizer = 'sgd' or 'adamw'",
    ),
    (
        {"deepspeed_zero_stage": [3], "compile": YES},
        "its hooks make the compiler begin anew at each layer",
        "use compile = false, or a lower stage",
    ),
    (
        {"deepspeed_zero_stage": SHARDED, "decay_norm_bias": NO},
        "checkpoints of a sharded optimiser hold one group of parameters",
        "use stage 0, or decay_norm_bias = true",
    ),
    (
        {"deepspeed_zero_stage": SHARDED, "precision": ["fp16"]},
        "ZeRO scales the loss by a rule of its own",
        "use 'bf16', or stage 0",
    ),
    (
        {"deepspeed_zero_stage": SHARDED, "channels_last": YES},
        "ZeRO lays weights out as NCHW",
        "use stage 0, or channels_last = false",
    ),
)


def check(run: "RunSpec", device: str) -> None:
    """Raise `SpecError` for the first combination of settings that is refused.

    `device` is ``"cpu"``, ``"cuda"``, or ``"auto"`` where it is not known yet.
    """
    for refusal in _refusals(run, run.model_dump(exclude_defaults=True)):
        raise SpecError(refusal)
    if run.ddp_compression == "bf16" and device == "cpu":
        raise SpecError(
            "ddp_compression = 'bf16' needs NCCL on GPUs; on the CPU use 'fp16' or 'none'"
        )


def _refusals(run: "RunSpec", changed: dict[str, Any]) -> Iterator[str]:
    """Yield what is refused; `changed` are the fields that are not at their defaults."""
    yield from _of_framework(run, changed)
    yield from _of_command(run, changed)
    for options in run.options():
        yield from options.refusals(run)
    for name in changed:
        if owner(name) not in (None, run.strategy):
            yield (
                f"{name} is a setting of strategy {owner(name)!r}, but the run's strategy is "
                f"{run.strategy!r}; leave it out"
            )
    yield from without_effect(run, DEPENDENT)
    if run.accumulation % run.micro_batches_per_pass:
        yield (
            f"micro_batches_per_pass = {run.micro_batches_per_pass} does not divide "
            f"accumulation = {run.accumulation}; choose a divisor"
        )
    yield from _of_sharding_groups(run)
    yield from refused(run, REFUSED)
    read = LOADERS[run.loader].formats if run.loader in LOADERS else ()
    if read and run.data_format not in read:
        others = [
            name
            for name, one in LOADERS.items()
            if run.framework in one.frameworks and not one.formats
        ]
        yield (
            f"loader {run.loader!r} does not read data_format = {run.data_format!r}; use "
            f"{' or '.join(map(repr, read))}, or one of the loaders: {', '.join(others)}"
        )


def _of_sharding_groups(run: "RunSpec") -> Iterator[str]:
    """Yield why the ranks of a run cannot form groups of `fsdp_shards`."""
    shards, own = run.fsdp_shards, run.gpus_per_node
    if shards is None:
        return
    of_ranks = f"fsdp_shards = {shards} with {run.world_size} ranks"
    if shards == run.world_size:
        yield f"{of_ranks}: this is one group, as without it; leave it out"
    elif run.world_size % shards:
        yield f"{of_ranks}: groups would differ in size; choose a divisor, below the ranks"
    elif shards % own and own % shards:
        yield (
            f"{of_ranks}, {own} per node: some groups would span more nodes than others; "
            f"choose a divisor or a multiple of gpus_per_node"
        )


def without_effect(run: "RunSpec", table: Dependent) -> Iterator[str]:
    """Yield a sentence on each changed field that has no effect in this run."""
    for name, value in run.model_dump(exclude_defaults=True).items():
        for start, field, values in table:
            if name.startswith(start) and getattr(run, field) not in values:
                needed = " or ".join(map(shown, values))
                yield (
                    f"{name} = {shown(value)} is of {field} = {needed} alone"
                    f", but {field} = {shown(getattr(run, field))}; leave it out"
                )


def refused(run: "RunSpec", table: Refused) -> Iterator[str]:
    """Yield a sentence on each row of values that this run has together."""
    for fields, reason, remedy in table:
        if all(getattr(run, name) in values for name, values in fields.items()):
            found = (f"{name} = {shown(getattr(run, name))}" for name in fields)
            yield f"{' with '.join(found)}: {reason}; {remedy}"


def _of_command(run: "RunSpec", changed: dict[str, Any]) -> Iterator[str]:
    """Yield what a run of a command lacks, and what it has that a command does not see."""
    if run.framework != COMMAND:
        if run.command is not None:
            yield f"command is of framework {COMMAND!r} alone; leave it out"
        return
    if run.command is None:
        yield "framework 'command' needs a command, e.g. command: python train.py"
    for name in changed:
        if name not in OF_COMMAND:
            yield (
                f"{name} = {shown(changed[name])} changes nothing in a command of yours; put it "
                f"into the command, e.g. --{name.replace('_', '-')}"
            )


def _of_framework(run: "RunSpec", changed: dict[str, Any]) -> Iterator[str]:
    for kind in EXTENSIBLE:
        name = getattr(run, kind)
        if retired := RETIRED.get(kind, {}).get(name):
            yield f"{kind} {name!r} is retired: {retired.instead}"
        entry = known(kind, name)
        if entry and run.framework not in entry.frameworks:
            own = [
                one for one, other in REGISTRIES[kind].items() if run.framework in other.frameworks
            ]
            yield _elsewhere(kind, name, run.framework, own, entry.frameworks)
    trains_with = FRAMEWORKS[run.framework].optimizers
    if run.optimizer not in trains_with:
        others = [name for name, one in FRAMEWORKS.items() if run.optimizer in one.optimizers]
        yield _elsewhere("optimizer", run.optimizer, run.framework, trains_with, others)
    for name in TORCH_ONLY:
        if run.framework != "torch" and name in changed:
            yield (
                f"{name} = {shown(changed[name])} is of framework 'torch' alone, but framework = "
                f"{run.framework!r}; leave it out"
            )


def _elsewhere(
    field: str, name: str, framework: str, own: Collection[str], others: Collection[str]
) -> str:
    """Return that a framework lacks a name, which names it has, and which frameworks have it."""
    return (
        f"{field} {name!r} is not one of framework {framework!r}; choose one of: "
        f"{', '.join(own)}; or framework {' or '.join(map(repr, others))}"
    )


def shown(value: object) -> str:
    """Return a value as a study file has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
