"""The optimiser of a run; the step sets its rate, from `schedules.py`, before every update."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError
from ddl_core.origin import INSTALL
from ddl_core.schedules import peak_learning_rate

OF_TORCH: dict[str, Callable[..., Optimizer]] = {"sgd": SGD, "adamw": AdamW}


def make_optimizer(spec: RunSpec, model: nn.Module) -> Optimizer:
    """Return the optimiser of `spec` over all parameters of `model`; LARS and LAMB are timm's."""
    settings = group_settings(spec)
    members = [list(model.parameters())]
    if not spec.decay_norm_bias:  # scales, shifts and biases are vectors, and decay not
        members = [
            [one for one in members[0] if (one.ndim > 1) == decays] for decays in (True, False)
        ]
    groups = [{"params": own, **of} for own, of in zip(members, settings, strict=True)]
    make = OF_TORCH.get(spec.optimizer) or _timm_optimizer(spec.optimizer)
    return make(groups, lr=peak_learning_rate(spec))


def group_settings(spec: RunSpec) -> list[dict[str, Any]]:
    """Return the settings of each parameter group of the optimiser, without the rate.

    One group; or two, if normalisation and biases do not decay: the weights, then the rest. LARS
    and LAMB adapt the rate of parameters that decay (timm; You et al. 2017, 2020).
    """
    settings: dict[str, Any] = {"weight_decay": spec.weight_decay}
    if spec.optimizer in ("sgd", "lars"):
        settings |= {"momentum": spec.momentum, "nesterov": spec.nesterov}
    elif spec.optimizer == "adamw":
        settings |= {"betas": (spec.adam_beta1, spec.adam_beta2), "eps": spec.adam_eps}
    if spec.decay_norm_bias:
        return [settings]
    return [settings, settings | {"weight_decay": 0.0}]


def _timm_optimizer(name: str) -> Callable[..., Optimizer]:
    import torch._dynamo  # timm imports it as well

    import ddl_core.models  # noqa: F401 (timm imports torchvision, which may need this)

    try:
        # timm sets a limit of a million; with it a network would be compiled again without end.
        with torch._dynamo.config.patch(recompile_limit=torch._dynamo.config.recompile_limit):
            module = import_module("timm.optim")
    except ModuleNotFoundError as error:
        raise NotInstalledError(
            f"optimizer {name!r} needs the package {error.name!r}, which is not installed; "
            f"run `{INSTALL}`, or use optimizer 'sgd'"
        ) from error
    return getattr(module, name.capitalize())


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """Give every parameter group the same rate."""
    for group in optimizer.param_groups:
        group["lr"] = value


def own_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that are there, of sharded ones this rank's part."""
    found = [one.grad for one in parameters if one.grad is not None]
    return [one.to_local() if hasattr(one, "to_local") else one for one in found]
