"""What the Lightning and the Accelerate loop share: network, batches, optimiser, a clock."""

import sys
import time

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

BATCH, CROP, EVERY = 16, 64, 20
SGD = {"lr": 0.025, "momentum": 0.9, "weight_decay": 1e-4}


def network() -> torch.nn.Module:
    """Return the network."""
    return torchvision.models.resnet18(num_classes=16)


def loader() -> "DataLoader[tuple[torch.Tensor, torch.Tensor]]":
    """Return batches of the folder that is named first on the command line."""
    views = transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    images = torchvision.datasets.ImageFolder(f"{sys.argv[1]}/train", views)
    return DataLoader(images, BATCH, shuffle=True, num_workers=1)


class Clock:
    """Prints what a step takes, as many scripts do."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    def step(self, index: int) -> None:
        """Say once in a while how long the last steps took."""
        if index % EVERY == 0:
            now = time.perf_counter()
            print(f"[{index}] time: {(now - self._begun) / EVERY:.4f}", flush=True)
            self._begun = now
