"""Network constructors: ``name(classes) -> module``, always with fresh weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddl_core.train.vision import models


def resnet18(classes: int) -> nn.Module:
    """ResNet18 for 224-pixel images (He et al. 2016)."""
    return models.resnet18(num_classes=classes)


def resnet50(classes: int) -> nn.Module:
    """ResNet50 (He et al. 2016; stride in the 3x3 convolution, as torchvision)."""
    return models.resnet50(num_classes=classes)


def resnet101(classes: int) -> nn.Module:
    """ResNet101."""
    return models.resnet101(num_classes=classes)


def resnet152(classes: int) -> nn.Module:
    """ResNet152."""
    return models.resnet152(num_classes=classes)


def alexnet(classes: int) -> nn.Module:
    """AlexNet (Krizhevsky 2014, the one-tower form)."""
    return models.alexnet(num_classes=classes)


def googlenet(classes: int) -> nn.Module:
    """GoogLeNet (Szegedy et al. 2015) without the auxiliary heads: one loss for all models."""
    return models.googlenet(num_classes=classes, aux_logits=False, init_weights=True)


def resnet8(classes: int) -> nn.Module:
    """ResNet8, the smallest of that family (n = 1): for studies on a CPU."""
    return SmallResNet(blocks_per_stage=1, classes=classes)


def resnet44(classes: int) -> nn.Module:
    """ResNet44 for 32-pixel images (He et al. 2016, section 4.2 with n = 7)."""
    return SmallResNet(blocks_per_stage=7, classes=classes)


class SmallResNet(nn.Module):
    """The ResNet of He et al. 2016, section 4.2, for 32-pixel images: depth 6n + 2.

    One 3x3 convolution, then three stages of n basic blocks with 16, 32 and 64 channels on 32, 16
    and 8 pixels, global average pooling and one linear layer. Shortcuts have no parameters
    (option A of the paper).

    Parameters
    ----------
    blocks_per_stage : int
        n of the paper.
    classes : int
        Outputs.
    """

    def __init__(self, blocks_per_stage: int, classes: int) -> None:
        super().__init__()
        stages = []
        channels = 16
        for width in (16, 32, 64):
            for _ in range(blocks_per_stage):
                stages.append(_BasicBlock(channels, width))
                channels = width
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, 32, 32) to logits (N, classes)."""
        features = self.stages(self.stem(images))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class _BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if channels == width else 2
        self.conv1 = nn.Conv2d(channels, width, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return x
        x = x[:, :, ::2, ::2]  # option A: subsample, and zeros for the new channels
        return functional.pad(x, (0, 0, 0, 0, 0, x.shape[1]))
