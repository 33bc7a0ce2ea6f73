"""Settings that a run cannot combine: each condition with the reason and what to use instead.

Checked when a run is planned, and by a rank once it knows its device; not when a record is read.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ddl_core.errors import SpecError
from ddl_core.registry import MODELS, REGISTRIES, known, owner

if TYPE_CHECKING:
    from ddl_core.config import RunSpec

# What the loop of the other libraries does not have.
TORCH_ONLY = (
    *("work", "accumulation", "precision", "channels_last", "compile", "optimizer", "nesterov"),
    *("profile_steps", "nsys"),
)
PREFIX = "emu_"  # of fields that are of emulated runs alone
# Emulated: compute sleeps and data are free; nothing is learnt, and no device can be profiled.
EMULATED: dict[str, Any] = {
    "framework": "torch",
    "loader": "synthetic",
    "device": "cpu",
    "work": "train",
    "accumulation": 1,
    "precision": "fp32",
    "compile": False,
    "nsys": False,
    "profile_steps": 0,
    "eval_every": 0,
}


def check(run: "RunSpec", device: str) -> None:
    """Check the settings of a run against each other.

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
    changed = run.model_dump(exclude_defaults=True)
    for group in (_of_library, _of_loader, _of_epochs, _of_emulation, _of_optimizer, _of_strategy):
        for refusal in group(run, changed):
            raise SpecError(refusal)
    if run.ddp_compression == "bf16" and device == "cpu":
        raise SpecError(
            "ddp_compression = 'bf16' needs NCCL on GPUs; on the CPU use 'fp16' or 'none'"
        )


Changed = dict[str, Any]
"""The fields of a run that are not at their defaults."""


def _of_library(run: "RunSpec", changed: Changed) -> Iterator[str]:
    for kind in ("strategy", "loader", "model"):
        name = getattr(run, kind)
        entry = known(kind, name)
        if entry and run.framework not in entry.frameworks:
            own = [
                one for one, other in REGISTRIES[kind].items() if run.framework in other.frameworks
            ]
            yield (
                f"{kind} {name!r} is not one of framework {run.framework!r}; choose one of: "
                f"{', '.join(own)}; or framework {' or '.join(map(repr, entry.frameworks))}"
            )
    if run.framework != "torch":
        for name in (name for name in TORCH_ONLY if name in changed):
            yield (
                f"{name} = {changed[name]!r} is of framework 'torch' alone, but framework = "
                f"{run.framework!r}; leave it out"
            )


def _of_loader(run: "RunSpec", _changed: Changed) -> Iterator[str]:
    if run.loader == "synthetic" and run.data_format != "folder":
        yield "loader 'synthetic' reads no files; leave data_format out"
    if run.loader == "synthetic" and run.work == "load":
        yield "loader 'synthetic' is never waited for; work = 'load' needs another"
    if run.loader in ("dali_gpu", "dali_reader_gpu") and run.device == "cpu":
        other = run.loader.replace("gpu", "cpu")
        yield f"loader {run.loader!r} decodes on a GPU, but device = 'cpu'; use loader {other!r}"
    if run.loader.startswith("dali") and run.loader_workers == 0:
        yield "loader_workers = 0: DALI needs at least one thread; use 1 or more"


def _of_epochs(run: "RunSpec", _changed: Changed) -> Iterator[str]:
    steps = f"profile_steps = {run.profile_steps}"
    if run.profile_steps and run.nsys:
        yield f"{steps}, but nsys = true: a GPU has one profiler at a time; leave one of them out"
    if run.profile_steps and run.work == "load":
        yield f"{steps}, but work = 'load' has no training to watch; leave one of them out"
    if run.profile_steps and run.epochs < 2:
        yield (
            f"{steps} watches the last epoch, which then does not count, but epochs = "
            f"{run.epochs}; use 2 at least, or 3 for a throughput as well"
        )
    if run.min_steps_per_epoch and run.eval_every:
        yield (
            f"min_steps_per_epoch = {run.min_steps_per_epoch} may make an epoch several passes "
            f"over the images, "
            f"and accuracy is told by pass, but eval_every = {run.eval_every}; set it to 0, or "
            "leave min_steps_per_epoch out"
        )


def _of_emulation(run: "RunSpec", changed: Changed) -> Iterator[str]:
    paced = [name for name, entry in MODELS.items() if entry.paced]
    if run.emulated != (run.model in paced):
        others = ", ".join(paced) if run.emulated else "another one"
        yield (
            f"model = {run.model!r}, but emulated = {str(run.emulated).lower()}: only compute of a "
            f"paced model is emulated; choose model {others}, or change emulated"
        )
    if not run.emulated:
        for name in (name for name in changed if name.startswith(PREFIX)):
            yield (
                f"{name} = {changed[name]} is of emulated runs alone; set emulated to true, or "
                "leave it out"
            )
        return
    for name, value in EMULATED.items():
        if getattr(run, name) != value:
            yield f"{name} = {getattr(run, name)!r}, but emulated = true, which needs {value!r}"
    if run.emu_uplink_mbit and run.nodes < 2:
        yield (
            f"emu_uplink_mbit = {run.emu_uplink_mbit} lies between two halves of the nodes, but "
            f"nodes = {run.nodes}; use 2 at least, or 0"
        )
    unchecked = "what it sends on these links was never checked"
    if run.deepspeed_zero_stage > 1:
        yield f"deepspeed_zero_stage = {run.deepspeed_zero_stage}: {unchecked}; use 0 or 1"
    if run.strategy == "fsdp":
        yield f"strategy = 'fsdp': {unchecked}; use another strategy"
    if run.ddp_compression == "powersgd":
        yield f"ddp_compression = 'powersgd': {unchecked}; use 'fp16' or 'none'"


def _of_optimizer(run: "RunSpec", _changed: Changed) -> Iterator[str]:
    if run.nesterov and (run.optimizer == "lamb" or run.momentum == 0):
        yield (
            f"nesterov = true needs momentum, but optimizer = {run.optimizer!r} and momentum = "
            f"{run.momentum}; use 'sgd' or 'lars' with momentum, or leave nesterov out"
        )


def _of_strategy(run: "RunSpec", changed: Changed) -> Iterator[str]:
    if run.strategy == "single" and run.world_size > 1:
        yield (
            f"strategy 'single' is one process, but nodes x gpus_per_node = {run.world_size}; "
            "use 'ddp', or `accumulation` for virtual workers"
        )
    for name in changed:
        if owner(name) not in (None, run.strategy):
            yield (
                f"{name} is a setting of strategy {owner(name)!r}, but the run's strategy is "
                f"{run.strategy!r}; leave it out"
            )
    own = {"ddp": _of_ddp, "fsdp": _of_fsdp, "deepspeed": _of_deepspeed}.get(run.strategy)
    if own:
        yield from own(run, changed)


def _of_ddp(run: "RunSpec", changed: Changed) -> Iterator[str]:
    if run.ddp_static_graph and run.accumulation > 1:
        yield (
            f"ddp_static_graph = true with accumulation = {run.accumulation}: torch's reducer then "
            "fails in the first step, or stops averaging gradients; use accumulation = 1, or "
            "ddp_static_graph = false"
        )
    if run.ddp_compression == "powersgd":
        if run.precision == "fp16":
            yield (
                "ddp_compression = 'powersgd' with precision = 'fp16': gradients that overflow "
                "once would stay in what it has not sent yet, and nothing be learnt from then on; "
                "use precision 'bf16' or 'fp32', or ddp_compression 'fp16'"
            )
        if run.checkpoint_every:
            yield (
                "ddp_compression = 'powersgd' keeps on each rank what it has not sent yet, which "
                f"no checkpoint holds, but checkpoint_every = {run.checkpoint_every}; set it to 0"
            )
        return
    for name in (name for name in changed if name.startswith("ddp_powersgd")):
        yield (
            f"{name} = {changed[name]} is of ddp_compression = 'powersgd' alone, but "
            f"ddp_compression = {run.ddp_compression!r}; leave it out"
        )


def _of_fsdp(run: "RunSpec", _changed: Changed) -> Iterator[str]:
    if run.precision == "fp16":
        yield (
            "precision = 'fp16' with strategy 'fsdp': whether an update is skipped was never "
            "compared with the other strategies; use 'bf16' or 'fp32'"
        )
    if run.channels_last:
        yield (
            "channels_last = true with strategy 'fsdp': it shards weights that lie in memory as "
            "NCHW only; use channels_last = false"
        )
    if run.compile:
        yield (
            "compile = true with strategy 'fsdp' was never compared with the other strategies; "
            "use compile = false"
        )
    if run.optimizer != "sgd":
        yield (
            f"optimizer = {run.optimizer!r} with strategy 'fsdp': it needs the norm of each layer, "
            "of which a rank has a part; use optimizer = 'sgd'"
        )


def _of_deepspeed(run: "RunSpec", changed: Changed) -> Iterator[str]:
    stage = f"deepspeed_zero_stage = {run.deepspeed_zero_stage}"
    if run.deepspeed_zero_stage == 0:
        if "deepspeed_bucket_elements" in changed:
            yield (
                f"deepspeed_bucket_elements = {run.deepspeed_bucket_elements} has no effect at "
                f"{stage}, whose buckets have a size of their own; use stage 1, 2 or 3, or leave "
                "it out"
            )
        if run.deepspeed_overlap_comm:
            yield (
                f"deepspeed_overlap_comm = true has no effect at {stage}, which reduces gradients "
                "after backward; use stage 1, 2 or 3, or leave it out"
            )
        return
    if run.optimizer != "sgd":
        yield (
            f"optimizer = {run.optimizer!r} with {stage}: it needs the norm of each layer, but "
            "ZeRO keeps the weights in one flat buffer; use stage 0, or optimizer = 'sgd'"
        )
    if run.deepspeed_zero_stage == 3 and run.compile:
        yield (
            f"compile = true with {stage}: its hooks make the compiler begin anew at each layer; "
            "use compile = false, or a lower stage"
        )
    if not run.decay_norm_bias:
        yield (
            f"decay_norm_bias = false with {stage}: the checkpoint of a sharded optimiser holds "
            "one group of parameters only; use stage 0, or decay_norm_bias = true"
        )
    if run.precision == "fp16":
        yield (
            f"precision = 'fp16' with {stage}: ZeRO scales the loss by its own rule, so its steps "
            "would not be those of the other strategies; use 'bf16', or stage 0"
        )
    if run.channels_last:
        yield (
            f"channels_last = true with {stage}: ZeRO keeps the weights in one flat buffer and "
            "lays them out NCHW; use stage 0, or channels_last = false"
        )
