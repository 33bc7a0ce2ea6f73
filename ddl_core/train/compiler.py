"""torch.compile, strictly: a record that says ``compile: true`` is never one of eager code."""

import os

from torch import nn

from ddl_core.errors import LaunchError
from ddl_core.private import compiled


def compile_network(network: nn.Module) -> None:
    """Have `network` compiled in place when it is first called.

    What torch would otherwise run uncompiled with a warning, because it gave up, ends the run. So
    does a folder for what it makes that is not this user's alone.
    """
    os.environ.update(compiled())
    import torch._dynamo  # takes a second, which runs without it need not spend

    torch._dynamo.config.suppress_errors = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    network.compile()


def check_compiled() -> None:
    """Check, after a first epoch, that this process has compiled something.

    Raises
    ------
    LaunchError
        If it has not: torch leaves some networks, and all of them if told by the environment, as
        they are without a word.
    """
    from torch._dynamo.utils import counters

    if not counters["stats"]["unique_graphs"]:
        raise LaunchError(
            "compile = true, but torch.compile has compiled nothing; unset TORCHDYNAMO_DISABLE and "
            "TORCH_COMPILE_DISABLE if the shell has them, or set compile to false"
        )
