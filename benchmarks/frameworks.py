"""The same epoch under other people's loops: Lightning's Trainer and Fabric, Accelerate.

Each gets the network, the optimiser and the batches of the bare loop: the very objects. What it
would do to data sets and files is switched off or left out, so what is left is its loop.
"""

import importlib.util
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata

import torch
from torch import Tensor, nn

import ddl_core.models  # noqa: F401 - first: it lets others import torchvision beside any torch
from ddl_core.loaders.synthetic import Synthetic

Epoch = Callable[[], None]

SMOOTHING = 0.1
PACKAGES = ("lightning", "accelerate")


def versions() -> dict[str, str]:
    """Return the packages that are installed, with their versions."""
    return {name: metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)}


def bare(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Synthetic,
    backward: Callable[[Tensor], object] = Tensor.backward,
    accumulation: int = 1,
) -> Epoch:
    """Return an epoch with nothing around it, one update for every `accumulation` batches."""
    criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)

    def epoch() -> None:
        network.train()
        loader.set_epoch(0)
        for number, (images, labels) in enumerate(loader):
            if number % accumulation == 0:
                optimizer.zero_grad(set_to_none=True)
            backward(criterion(network(images), labels) / accumulation)
            if (number + 1) % accumulation == 0:
                optimizer.step()

    return epoch


def fabric(network: nn.Module, optimizer: torch.optim.Optimizer, loader: Synthetic) -> Epoch:
    """Return the bare loop with what Lightning's Fabric makes of network and optimiser."""
    from lightning.fabric import Fabric

    made = Fabric(accelerator="cpu", devices=1)
    wrapped, stepped = made.setup(network, optimizer)
    return bare(wrapped, stepped, loader, made.backward)


def accelerate(network: nn.Module, optimizer: torch.optim.Optimizer, loader: Synthetic) -> Epoch:
    """Return the bare loop with what Hugging Face's Accelerate makes of network and optimiser."""
    from accelerate import Accelerator

    made = Accelerator(cpu=True)
    wrapped, stepped = made.prepare(network, optimizer)
    return bare(wrapped, stepped, loader, made.backward)


def trainer(network: nn.Module, optimizer: torch.optim.Optimizer, loader: Synthetic) -> Epoch:
    """Return one epoch of one `fit` of Lightning's Trainer, which waits in between for its turn.

    A window runs from the end of one epoch to that of the next; the start of `fit` is in the first
    one, which does not count. No logger, checkpoint, bar or validation. A Trainer owns its loop, so
    it has a thread.
    """
    import lightning

    criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    turn, done = threading.Semaphore(0), threading.Semaphore(0)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            images, labels = batch
            return criterion(self.network(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

        def on_train_epoch_end(self) -> None:
            done.release()
            turn.acquire()

    made = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    failed: list[BaseException] = []

    def fit() -> None:
        turn.acquire()
        try:
            made.fit(Module(), loader)
        except BaseException as error:
            failed.append(error)
            done.release()

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()

    def epoch() -> None:
        loader.set_epoch(0)
        turn.release()
        done.acquire()
        if failed:
            raise failed[0]

    return epoch


# Each loop by name, with the package that it needs.
_MADE = {
    "Lightning Fabric": (fabric, "lightning"),
    "Lightning Trainer": (trainer, "lightning"),
    "Accelerate": (accelerate, "accelerate"),
}
LOOPS = tuple(_MADE)


def beside(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Synthetic,
    names: Sequence[str] = LOOPS,
) -> dict[str, Epoch]:
    """Return the epochs of those of `names` whose packages are installed."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    installed = versions()
    epochs: dict[str, Epoch] = {}
    for name in names:
        make, package = _MADE[name]
        if package in installed:
            epochs[name] = make(network, optimizer, loader)
        else:
            print(f"skipped: {package} is not installed; benchmarks/README.md says how")
    return epochs
