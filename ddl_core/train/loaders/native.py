"""The paper's native path: Pillow, torchvision transforms, torch's DataLoader."""

import torch
from PIL import Image
from torch import Tensor

from ddl_core.rank.views import MEAN, STD, evaluation_corner, evaluation_size, open_rgb
from ddl_core.train.loaders.dataloader import ProcessLoader, Samples
from ddl_core.train.vision import transforms

functional = transforms.functional


class PillowSamples(Samples):
    """Decodes and resizes with Pillow, normalises in floating point on the CPU."""

    def blank(self) -> Tensor:
        """Return the mean colour, which is zero after normalising."""
        return torch.zeros(3, self.size, self.size)

    def decode(self, content: bytes) -> Image.Image:
        """Return the image in RGB."""
        return open_rgb(content)

    def view(self, image: Image.Image, epoch: int, number: int) -> Tensor:
        """Return the normalised view, float32."""
        cut = self._cut(image, epoch, number)
        return functional.normalize(functional.to_tensor(cut), MEAN, STD, inplace=True)

    def _cut(self, image: Image.Image, epoch: int, number: int) -> Image.Image:
        if self.views:
            view = self.views.view(epoch, number, image.height, image.width)
            part = functional.resized_crop(image, *view[:4], [self.size, self.size])
            return functional.hflip(part) if view.flip else part
        resized = functional.resize(image, evaluation_size(self.size, image.height, image.width))
        corner = evaluation_corner(self.size, resized.height, resized.width)
        return functional.crop(resized, *corner, self.size, self.size)


class Native(ProcessLoader):
    """What torchvision's own ImageNet example does, on class folders or on TFRecord."""

    samples = PillowSamples
