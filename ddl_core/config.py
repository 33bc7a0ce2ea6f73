"""What a run is: `RunSpec`, from which names, command lines and table columns follow."""

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from ddl_core import combinations, registry, retired
from ddl_core.errors import SpecError
from ddl_core.files import describe
from ddl_core.registry import COMMAND, check_name

IMAGENET_TRAIN_IMAGES = 1_281_167
IMAGENET_EVAL_IMAGES = 50_000

# Over Gloo each of Horovod's ranks connects to all: more nodes need MPI.
MOST_NODES_OVER_GLOO = 16

# Every number has a limit, so that a mistyped one is named.
Count = Annotated[int, Field(ge=0, le=10**6)]
Positive = Annotated[int, Field(gt=0, le=10**6)]
Large = Annotated[int, Field(ge=0, le=10**10)]
Images = Annotated[int, Field(gt=0, le=10**10)]
Amount = Annotated[float, Field(ge=0, le=10**6)]
Size = Annotated[float, Field(gt=0, le=10**6)]

NAME = r"^[a-z0-9_]+$"  # of a study or a data set: it becomes a folder
LONGEST_NAME = 100  # characters

STUDY_ONLY = ("second_start",)
"""Fields of `RunSpec` that a study file alone sets: no option, and no row in the reference."""


# Strict: without it, `true` would be the number 1.
_STRICT = ConfigDict(
    frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
)
_LAST = ("second_start", "seed", "repeat")  # what makes a run another run of the same settings


class Options(BaseModel):
    """Fields of a run that a plug-in declares, with names, types, limits and defaults.

    Derive a class, and announce it as an entry point NAME of the group ``ddl_core.options``. Its
    fields are bool, int or float and begin with NAME; a run has them among its own. It is imported
    wherever runs are planned. A default must never change: neither hash nor record has it.
    """

    model_config = _STRICT

    words: ClassVar[Mapping[str, str | dict[Any, str]]] = {}
    """What fields are called in labels, or their values."""

    def refusals(self, run: "RunSpec") -> Iterator[str]:
        """Yield why a run may not have these options beside its other fields."""
        yield from ()

    def launcher(self, run: "RunSpec") -> Any:
        """Return what makes the nodes of a run on one machine, as the launcher asks for them.

        None: the run uses machines as they are, and measures them.
        """
        return None


AnyOptions = TypeVar("AnyOptions", bound=Options)


class RunSpec(BaseModel):
    """One run, completely: two runs with the same `RunSpec` do the same work.

    Besides these fields it has those of `Options`, as attributes like its own.
    """

    model_config = _STRICT | ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool | int | float]

    framework: str = Field("torch", description="framework that computes")
    strategy: str = Field("single", description="data-parallel strategy")
    loader: str = Field("native", description="data loader")
    model: str = Field(
        "resnet50",
        description="network; also torchvision/NAME, timm/NAME, or package.module:function",
    )
    work: Literal["train", "load", "probe"] = Field(
        "train",
        description="what a run does; load: fetch the batches and train nothing, the loader's own "
        "limit; probe: what `ddl doctor` starts",
    )
    command: str | None = Field(
        None,
        pattern=r"^[ -~]+$",
        max_length=4000,
        description="framework command: program that trains, and prints how many images it has "
        "trained on (null: none)",
    )
    dataset: str = Field(
        "sample",
        pattern=NAME,
        max_length=LONGEST_NAME,
        description="name of the data set; `--data` gives its folder",
    )
    data_format: str = Field(
        "folder",
        description="format of the data: images in class folders (folder), or TFRecord files "
        "(tfrecord)",
    )
    image_size: int = Field(224, ge=8, le=4096, description="side of the training crop (pixels)")
    classes: Positive = Field(1000, description="outputs of the network, at least all classes")
    crop_min_area: float = Field(
        0.08, gt=0, le=1, description="smallest share of an image in a training crop"
    )
    train_images: Images | None = Field(
        None, description="number of training images (default: all; synthetic: ImageNet's)"
    )
    eval_images: Images | None = Field(
        None, description="number of evaluation images (default: all; synthetic: ImageNet's)"
    )
    nodes: int = Field(1, gt=0, le=10**5, description="number of nodes")
    gpus_per_node: Positive = Field(1, description="ranks per node, also on nodes without a GPU")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device of the ranks")
    cpu_threads: Positive = Field(1, description="compute threads of each rank on the CPU")
    oversubscribe: bool = Field(
        False,
        description="more ranks than cores on a CPU: memory is that of as many ranks, throughput "
        "comparable only among runs of as many",
    )
    local_batch_size: Positive = Field(64, description="images per rank and micro-batch")
    accumulation: Positive = Field(
        1, description="micro-batches per optimiser step, each standing for a virtual worker"
    )
    micro_batches_per_pass: Positive = Field(
        1,
        description="micro-batches in one forward and backward pass; each has its own statistics "
        "of batch normalisation (a divisor of `accumulation`)",
    )
    epochs: Positive = Field(90, description="number of epochs")
    precision: Literal["fp32", "tf32", "torch", "bf16", "fp16"] = Field(
        "fp32",
        description="arithmetic of forward and backward pass; torch: PyTorch's own default, on a "
        "GPU TF32 in convolutions alone",
    )
    channels_last: bool = Field(False, description="NHWC memory format")
    compile: bool = Field(False, description="compilation of the network by torch.compile")
    activation_checkpointing: bool = Field(
        False, description="recomputation of the activations of each block in the backward pass"
    )
    optimizer: Literal["sgd", "lars", "lamb", "adamw"] = Field("sgd", description="optimiser")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD and LARS")
    nesterov: bool = Field(False, description="Nesterov momentum, for SGD and LARS")
    weight_decay: Amount = Field(1e-4, description="weight decay")
    decay_norm_bias: bool = Field(
        True, description="weight decay of normalisation layers and biases as well"
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the first moment")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="AdamW: decay of the second moment")
    adam_eps: Amount = Field(1e-8, description="AdamW: number added to the denominator")
    clip_grad_norm: Size | None = Field(
        None, description="largest norm of all gradients together (null: no clipping)"
    )
    schedule: Literal["constant", "step", "cosine", "exponential"] = Field(
        "step", description="learning-rate schedule"
    )
    base_lr: float = Field(
        0.025, gt=0, le=1e30, description="learning rate of one rank without accumulation"
    )
    lr_scaling: Literal["linear", "sqrt"] = Field(
        "linear", description="factor of `base_lr`: ranks times `accumulation`, or its root"
    )
    warmup_epochs: Amount = Field(5, description="epochs of linear learning-rate warm-up")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="label-smoothing factor (0 to 1)")
    eval_every: Count = Field(1, description="epochs between evaluations (0: never)")
    precise_bn: bool = Field(
        False,
        description="second evaluation after the last epoch, with statistics of batch "
        "normalisation estimated anew over all training images",
    )
    checkpoint_every: Count = Field(1, description="epochs between checkpoints (0: never)")
    discard_steps: Large = Field(20, description="first optimiser steps without a throughput")
    min_steps_per_epoch: int = Field(
        0,
        ge=0,
        le=100_000,
        description="fewest optimiser steps of an epoch, which takes the images several "
        "times if needed (0: once)",
    )
    profile_steps: int = Field(
        0,
        ge=0,
        le=100,  # a trace of more takes minutes to write, in which the run seems to hang
        description="profiled steps of the last epoch (0: none)",
    )
    prefix: str | None = Field(
        None,
        pattern=r"^[ -~]+$",
        max_length=1000,
        description="words before the command of each rank, e.g. of a profiler; `{logs}` is the "
        "folder of logs; no epoch gives a throughput",
    )
    loader_workers: Count = Field(
        8, description="loader processes of each rank; threads with DALI and outside torch"
    )
    loader_prefetch: Positive = Field(
        2,
        description="batches prepared ahead by each loader process; in all with DALI and "
        "outside torch",
    )
    pin_memory: bool = Field(True, description="copies to a GPU from page-locked memory")
    persistent_workers: bool = Field(
        True, description="loader processes that live from epoch to epoch"
    )
    uncached: bool = Field(
        False, description="images of an epoch leave the system's cache before it begins"
    )
    dali_decode: Literal["gpu", "cpu"] = Field(
        "gpu", description="loader dali_gpu: where images are decoded; the GPU resizes them"
    )
    # The defaults of a framework's settings are its own: a run without them shows what a user gets.
    ddp_bucket_mb: Size = Field(25, description="DDP: size of a gradient bucket (MiB)")
    ddp_first_bucket_mb: Size | None = Field(
        None,
        description="DDP: size of the bucket that is ready first (MiB); null: torch's own, "
        "1 with buckets of 25, else that of the others",
    )
    ddp_bucket_view: bool = Field(False, description="DDP: gradients as views of the buckets")
    ddp_compression: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        "none", description="DDP: compression of gradients"
    )
    ddp_powersgd_rank: Positive = Field(
        1, description="DDP with powersgd: rank of the approximation"
    )
    ddp_powersgd_start: int = Field(
        1000, ge=2, le=10**10, description="DDP with powersgd: first steps without compression"
    )
    fsdp_shards: int | None = Field(
        None,
        ge=2,
        le=10**6,
        description="FSDP: consecutive ranks that share one copy of the state; groups of them "
        "average their gradients (HSDP; null: all ranks)",
    )
    horovod_fusion_mb: Amount = Field(
        128, description="Horovod: size of the tensor fusion buffer (MiB)"
    )
    horovod_cycle_ms: Size = Field(1, description="Horovod: time between reductions (ms)")
    deepspeed_zero_stage: Literal[0, 1, 2, 3] = Field(
        0,
        description="DeepSpeed: ZeRO stage; 1 shards optimiser states, 2 also gradients, 3 "
        "also weights",
    )
    deepspeed_overlap_comm: bool = Field(
        False, description="DeepSpeed: reduction of gradients during backward"
    )
    deepspeed_bucket_elements: int = Field(
        500_000_000, ge=10, le=10**10, description="DeepSpeed, stages 1 to 3: elements of a bucket"
    )
    second_start: bool = Field(
        False,
        description="second start of the same run: the ratio to the first shows the effect "
        "of a start",
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of weights, order and augmentation")
    repeat: Count = Field(0, description="index of the repetition; enters every seed")

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, fields: Any) -> Any:
        """Leave out retired fields at the value that records have; check and complete options."""
        if not isinstance(fields, dict):
            return fields
        for name in retired.SETTINGS.keys() & fields.keys():
            if fields[name] != retired.SETTINGS[name].value:
                raise ValueError(retired.refusal(name))
        own = {name: value for name, value in fields.items() if name in cls.model_fields}
        others = fields.keys() - own.keys() - retired.SETTINGS.keys()
        options = {name: fields[name] for name in others}
        return own | dict(_all_options(declared()).model_validate(options))

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out options at their defaults: the rest is read without the plug-in as well."""
        found, options = serialize(self), _all_options(declared()).model_fields
        return {
            name: value
            for name, value in found.items()
            if name not in options or value != options[name].default
        }

    @field_validator(*registry.REGISTRIES)
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        try:
            return check_name(str(info.field_name), name[:LONGEST_NAME])
        except SpecError as error:
            raise ValueError(str(error)) from None

    @field_validator("prefix", "command")
    @classmethod
    def _has_words(cls, text: str | None) -> str | None:
        if text is not None and not shlex.split(text):
            raise ValueError("it has no word")
        return text

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus_per_node

    @property
    def started_ranks(self) -> int:
        """Processes that the launcher starts: all ranks, or one that starts a command."""
        return 1 if self.framework == COMMAND else self.world_size

    @property
    def machines(self) -> int:
        """Number of computers that its ranks need."""
        return 1 if self.simulated else self.nodes

    @property
    def simulated(self) -> bool:
        """Whether its nodes are made on one machine, and none of its times is of a cluster."""
        return self.launcher is not None

    @property
    def launcher(self) -> Any:
        """What a plug-in makes its nodes with, if any does."""
        found = (one.launcher(self) for one in self.options())
        return next((one for one in found if one is not None), None)

    def options(self) -> list[Options]:
        """Return the options of all plug-ins."""
        return [self.of(kind) for kind in declared()]

    def of(self, kind: type[AnyOptions]) -> AnyOptions:
        """Return the options of one plug-in."""
        extra = self.model_extra or {}
        return kind(**{name: extra[name] for name in kind.model_fields if name in extra})

    @property
    def virtual_workers(self) -> int:
        """Workers the optimiser sees: ranks times accumulation."""
        return self.world_size * self.accumulation

    @property
    def backward_passes(self) -> int:
        """Backward passes of a rank in each optimiser step."""
        return self.accumulation // self.micro_batches_per_pass

    @property
    def images_per_pass(self) -> int:
        """Images of a rank in one backward pass."""
        return self.local_batch_size * self.micro_batches_per_pass

    @property
    def global_batch_size(self) -> int:
        """Images per optimiser step."""
        return self.virtual_workers * self.local_batch_size

    @property
    def waits_in_backward(self) -> bool:
        """Whether a rank's backward pass waits for other ranks: a step then has no breakdown.

        ZeRO's stages 2 and 3, and 1 with `deepspeed_overlap_comm`, wait for each full bucket, as
        PowerSGD does; FSDP gathers weights.
        """
        return (
            self.strategy == "fsdp"
            or self.deepspeed_zero_stage >= 2
            or self.deepspeed_overlap_comm
            or self.ddp_compression == "powersgd"
        )

    def passes(self, images: int) -> int:
        """Return how often an epoch takes each of `images` training images."""
        return max(1, -(-self.min_steps_per_epoch * self.global_batch_size // images))

    def cold_epochs(self, steps: int) -> int:
        """Return how many epochs of so many steps do not count after a start: at least one.

        With a `prefix` none counts: its program takes time of its own.
        """
        return self.epochs if self.prefix else max(1, -(-self.discard_steps // steps))

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether a start goes on where an earlier one has left; else it begins again."""
        trains = self.work == "train" and self.framework != COMMAND
        return trains and self.checkpoint_every > 0

    def due(self, every: int, epoch: int) -> bool:
        """Say whether something is due that is done `every` so many epochs and after the last.

        A command of the user's does such things by itself.
        """
        if self.framework == COMMAND:
            return False
        return every > 0 and ((epoch + 1) % every == 0 or epoch + 1 == self.epochs)

    @property
    def known_images(self) -> int | None:
        """Training images, if known before a loader has looked."""
        whole = self.loader == "synthetic" or self.dataset == "imagenet"
        return self.train_images or (IMAGENET_TRAIN_IMAGES if whole else None)

    @property
    def run_id(self) -> str:
        """Readable part, then 8 hexadecimal digits of a hash over fields that are no defaults.

        So a field that is added later keeps the names of older runs.
        """
        changed = self.model_dump(mode="json", exclude_defaults=True)
        digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
        size = f"{self.nodes}x{self.gpus_per_node}"
        framework = "" if self.framework == "torch" else f"{self.framework}-"
        model = re.sub(r"[/:]", "-", self.model)  # part of a folder's name
        what = "" if self.framework == COMMAND else f"-{model}"
        name = f"{framework}{self.strategy}-{self.loader}{what}-{size}-r{self.repeat}"
        return f"{name}-{digest}"

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "RunSpec":
        """Validate `fields`; `SpecError` names each wrong one, its value and what is allowed."""
        try:
            run = cls.model_validate(fields)
        except ValidationError as error:
            raise SpecError(describe(error, cls, run_fields())) from None
        combinations.check(run, run.device)
        return run


def run_fields() -> dict[str, FieldInfo]:
    """Return all fields of a run in their order; options precede what makes another run."""
    own = RunSpec.model_fields
    settings = {name: field for name, field in own.items() if name not in _LAST}
    for kind in declared():
        settings |= kind.model_fields
    return settings | {name: own[name] for name in _LAST}


def declared() -> tuple[type[Options], ...]:
    """Return the classes of all plug-ins that declare options."""
    return _declared(tuple(registry.OPTIONS.items()))


@cache
def _declared(announced: tuple[tuple[str, str], ...]) -> tuple[type[Options], ...]:
    """Import the classes; a broken one is left out, with a sentence in `registry.LEFT_OUT`."""
    found: list[type[Options]] = []
    for name, code in announced:
        what = f"options {name!r}"
        try:
            kind = registry.load(what, code)
            _check_options(name, kind, {field for one in found for field in one.model_fields})
        except Exception as error:  # whatever the package of others raises
            registry.LEFT_OUT.append(f"{what} ({code}): {error}; mend or uninstall the package")
        else:
            found.append(kind)
    return tuple(found)


def _check_options(name: str, kind: Any, taken: Collection[str]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Options)):
        raise SpecError("it is no class derived from ddl_core.config.Options")
    for field, about in kind.model_fields.items():
        if not field.startswith(name):
            raise SpecError(f"field {field!r} does not begin with {name!r}")
        if field in taken or field in RunSpec.model_fields or hasattr(RunSpec, field):
            raise SpecError(f"field {field!r} exists; give it another name")
        if type(about.default) not in (bool, int, float):
            raise SpecError(f"field {field!r} has no default that is a bool, an int or a float")


@cache
def _all_options(kinds: tuple[type[Options], ...]) -> type[Options]:
    """Return one class with the fields of several, by which their values are checked together."""
    return create_model("Options", __base__=(*kinds, Options))
