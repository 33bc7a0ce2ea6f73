"""A training script with Lightning's Trainer: ``lightning_loop.py FOLDER``."""

import common
import lightning
import torch
from torch import Tensor


class Classifier(lightning.LightningModule):
    """What is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.network = common.network()
        self.criterion = torch.nn.CrossEntropyLoss()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return self.criterion(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.SGD(self.parameters(), **common.SGD)


class Clock(lightning.Callback):
    """What a step takes."""

    def __init__(self) -> None:
        self.clock = common.Clock()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        outputs: object,
        batch: list[Tensor],
        index: int,
    ) -> None:
        """Note a step."""
        self.clock.step(index)


trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    callbacks=[Clock()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Classifier(), common.loader())
