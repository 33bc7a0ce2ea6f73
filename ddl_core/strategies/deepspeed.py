"""DeepSpeed, ZeRO stages 0 to 3, over NCCL (GPU) or Gloo (CPU)."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddl_core.config import RunSpec
from ddl_core.strategies.base import ProcessGroup

# The package itself is imported once the device is known, because it fixes its own at import.
if find_spec("deepspeed") is None:
    raise ModuleNotFoundError("No module named 'deepspeed'", name="deepspeed")

# Stage 3 updates sub-groups of parameters one by one; in one group, a step is one update.
ONE_GROUP = 10**12

AUTOCAST = {"bf16": "bfloat16", "fp16": "float16"}

COUNT = "step"
"""What AdamW's state calls the number of updates; it is no tensor of the size of its parameter."""


def configuration(spec: RunSpec) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a run.

    The throughput timer is off, and without clipping the norm of the gradients (at stage 3: by
    `setup`): they would wait for the device in every step.
    """
    stage = spec.deepspeed_zero_stage
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": spec.deepspeed_overlap_comm}
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": spec.images_per_pass,
        "gradient_accumulation_steps": spec.backward_passes,
        "gradient_clipping": spec.clip_grad_norm or 0.0,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": zero,
    }
    if stage in (1, 2):
        zero["compute_grad_norm"] = spec.clip_grad_norm is not None
    if stage > 0:
        zero |= _buckets(stage, spec.deepspeed_bucket_elements)
        settings["zero_allow_untested_optimizer"] = True  # only DeepSpeed's own Adam is "tested"
    if spec.precision in AUTOCAST:
        # No module is named, so gradients travel in fp32, as under the other strategies.
        settings["torch_autocast"] = {
            "enabled": True,
            "dtype": AUTOCAST[spec.precision],
            "lower_precision_safe_modules": [],
        }
    return settings


def _buckets(stage: int, elements: int) -> dict[str, int]:
    """Return the sizes of buckets, in the proportions of DeepSpeed's defaults."""
    if stage < 3:
        return {"reduce_bucket_size": elements, "allgather_bucket_size": elements}
    return {
        "reduce_bucket_size": elements,
        "stage3_prefetch_bucket_size": elements // 10,
        "stage3_max_live_parameters": 2 * elements,
        "stage3_max_reuse_distance": 2 * elements,
        "stage3_param_persistence_threshold": elements // 5000,
        "sub_group_size": ONE_GROUP,
    }


class DeepSpeed(ProcessGroup):
    """A torch.distributed group and DeepSpeed's engine around the model."""

    def __init__(self, spec: RunSpec) -> None:
        self._configuration = configuration(spec)
        super().__init__(spec)
        self.is_sharded = spec.deepspeed_zero_stage == 3
        self._deepspeed = _import_deepspeed(self.device)
        self._engine: Any = None

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Wrap both in an engine, which sends rank 0's weights to all."""
        spec = self.spec
        if spec.channels_last:  # the engine sends weights as bytes, which needs them contiguous
            _lay_out(model, torch.contiguous_format)
        # On some sites every rank sees one GPU only, as number 0.
        place = SimpleNamespace(device_rank=self.device.index or 0)
        self._engine, *_ = self._deepspeed.initialize(
            args=place, model=model, optimizer=optimizer, config=self._configuration
        )
        if spec.channels_last:
            _lay_out(model, torch.channels_last)
        # With fp16 the loss comes scaled already; the engine would scale it once more.
        self._engine.torch_autocast_z0_gradscaler = None
        if self.is_sharded and spec.clip_grad_norm is None:
            # No setting switches off the norm of the gradients. It would wait for the device, and
            # one that is not finite would skip the update.
            self._engine.optimizer._get_norm_groups = lambda: [0.0]
        self.optimizer = EngineOptimizer(self._engine)
        return self._engine, cast(Optimizer, self.optimizer)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Tell the engine that more micro-batches follow; stage 2 reduces gradients anyway."""
        self._engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            self._engine.set_gradient_accumulation_boundary(True)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`, already divided by the number of passes."""
        self._engine.backward(loss, scale_wrt_gas=False)

    def clip_gradients(self, scaler: torch.amp.GradScaler) -> None:
        """Do nothing: the engine clips when it makes the update, after `scaler`."""

    def full_weights(self, network: nn.Module) -> dict[str, Tensor]:
        """Gather the weights one by one, where they are sharded."""
        weights = network.state_dict()
        if self.is_sharded:
            for name, parameter in network.named_parameters(remove_duplicate=False):
                with self._deepspeed.zero.GatheredParameters([parameter]):
                    weights[name] = _kept(parameter.detach()).clone()
        return weights

    def full_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Gather weights and momenta one by one, where they are sharded.

        The optimiser's state is in order of the model's parameters, as without DeepSpeed.
        """
        weights, zero = self.full_weights(network), self._engine.optimizer
        if not self._engine.zero_optimization_stage():
            return {"model": weights, "optimizer": zero.state_dict()}
        whole = self._deepspeed.utils.safe_get_full_optimizer_state
        first = zero.optimizer.state[self._shares()[0]]
        own = {name: first[name] for name in sorted(first) if isinstance(first[name], Tensor)}
        state = {
            index: {
                name: value.clone() if name == COUNT else _kept(whole(parameter, name))
                for name, value in own.items()
            }
            for index, parameter in enumerate(_trained(network))
        }
        groups = [{k: v for k, v in one.items() if k != "params"} for one in zero.param_groups]
        saved = {"state": state if own else {}, "param_groups": groups}
        return {"model": weights, "optimizer": saved}

    def load_full_state(
        self, network: nn.Module, optimizer: Optimizer, saved: dict[str, Any]
    ) -> None:
        """Give each rank its share."""
        weights = dict(saved["model"])
        if self.is_sharded:
            for name, parameter in network.named_parameters(remove_duplicate=False):
                # Rank 0 sends it to the others; torch copies an empty tensor.
                gathered = self._deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)
                with gathered, torch.no_grad():
                    parameter.copy_(weights[name])
                weights[name] = torch.empty_like(parameter)
        network.load_state_dict(weights)
        if self._engine.zero_optimization_stage():
            self._load_momenta(network, saved["optimizer"])
        else:
            self._engine.optimizer.load_state_dict(saved["optimizer"])

    def _load_momenta(self, network: nn.Module, saved: dict[str, Any]) -> None:
        zero = self._engine.optimizer
        for group, options in zip(zero.param_groups, saved["param_groups"], strict=True):
            group.update(options)
        zero.refresh_fp32_params()  # what is updated is a copy of this rank's share of the weights
        if not saved["state"]:
            return
        for share in self._shares():
            for name, value in saved["state"][0].items():
                own = value.clone() if name == COUNT else torch.zeros_like(share)
                zero.optimizer.state[share].setdefault(name, own)
        if self.is_sharded:
            put = _put_part
        else:
            put = self._deepspeed.utils.safe_set_full_optimizer_state
            zero._lazy_init_hp_params_optimizer_state()  # usually linked by the first step
        for parameter, values in zip(_trained(network), saved["state"].values(), strict=True):
            for name, value in values.items():
                if name != COUNT:
                    put(parameter, value, name)

    def _shares(self) -> list[Tensor]:
        """Return this rank's share of the weights."""
        zero = self._engine.optimizer
        return list(
            zero.fp32_partitioned_groups_flat
            if self.is_sharded
            else zero.single_partition_of_fp32_groups
        )

    def describe(self) -> dict[str, Any]:
        """Add the buckets of the engine, in elements.

        ``kept_elements``: at stage 3, smaller weights stay on every rank. Stage 0 reduces all
        gradients after backward, in buckets of a constant size.
        """
        if self._engine.zero_optimization_stage() == 0:
            from deepspeed.runtime.engine import MEMORY_OPT_ALLREDUCE_SIZE

            buckets = {"bucket_elements": MEMORY_OPT_ALLREDUCE_SIZE, "overlap": False}
        else:
            zero = self._engine.optimizer
            overlap = bool(self._engine.zero_overlap_comm())
            buckets = {"bucket_elements": zero.reduce_bucket_size, "overlap": overlap}
            if self.is_sharded:
                kept = zero.parameter_offload.param_numel_persistence_threshold
                buckets |= {"prefetch_elements": zero.prefetch_elements, "kept_elements": kept}
            else:
                buckets["allgather_bucket_elements"] = zero.allgather_bucket_size
        dtype = str(self._engine.communication_data_type).removeprefix("torch.")
        return {**super().describe(), **buckets, "dtype": dtype}

    def teardown(self) -> None:
        """Leave the group; the engine goes first, because it holds groups of its own."""
        if self._engine is not None:
            self._engine.destroy()
        self._engine = None
        super().teardown()


class EngineOptimizer:
    """The engine's optimiser, sharded or not, as the step calls it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the optimiser; under ZeRO of this rank's share."""
        return self._engine.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self._engine.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """Make the update; under ZeRO collect the weights of the other ranks."""
        self._engine.step()


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [one for one in network.parameters() if one.requires_grad]


def _put_part(parameter: nn.Parameter, value: Tensor, name: str) -> None:
    """Set this rank's part of a state at stage 3; DeepSpeed's own fails for odd sizes."""
    from deepspeed.utils import safe_set_local_optimizer_state as put

    size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]  # DeepSpeed's, padded
    whole = nn.functional.pad(value.flatten(), (0, size * dist.get_world_size() - value.numel()))
    part = whole.narrow(0, size * dist.get_rank(), size)
    put(parameter, part, name)


def _kept(value: Tensor) -> Tensor:
    """Return a gathered tensor in rank 0's main memory; an empty one elsewhere."""
    return value.cpu() if dist.get_rank() == 0 else value.new_empty(0, device="cpu")


def _lay_out(model: Any, memory_format: torch.memory_format) -> None:
    model.to(memory_format=memory_format)  # missing in torch's own type hints


def _import_deepspeed(device: torch.device) -> ModuleType:
    """Import the package for `device`, without compiling its own all-reduce for CPUs."""
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ.setdefault(
        "TORCH_EXTENSIONS_DIR", str(Path(sys.prefix, "cache", "torch_extensions"))
    )
    import deepspeed

    if device.type == "cpu":  # on a GPU, this would probe all operations
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # Calls inside DeepSpeed that torch 2.13 has renamed.
    renamed = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
    warnings.filterwarnings("ignore", message=renamed, category=FutureWarning)
    return deepspeed
