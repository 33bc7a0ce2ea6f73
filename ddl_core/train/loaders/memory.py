"""Small sets, decoded once and kept in memory: for studies of accuracy, not of loading.

The views are those of every other loader, and the pixels those of `turbo`.
"""

from torch import Tensor

from ddl_core.errors import SpecError
from ddl_core.spec.run import RunSpec
from ddl_core.train.loaders.dataloader import Sample
from ddl_core.train.loaders.files import Images
from ddl_core.train.loaders.turbo import Turbo, TurboSamples
from ddl_core.train.protocols import Split

MOST_BYTES = 2_000_000_000  # of one process; Fashion-MNIST in RGB takes 160 MB


class KeptSamples(TurboSamples):
    """Decodes an image when it is first asked for, and then keeps it.

    With loader processes each keeps what it has seen; `persistent_workers` lets them live.
    """

    def __init__(self, spec: RunSpec, files: Images, split: Split) -> None:
        super().__init__(spec, files, split)
        self._kept: dict[int, tuple[Tensor, int]] = {}

    def __getitem__(self, place: tuple[int, int]) -> Sample:
        """Return the image at (epoch, number).

        Raises
        ------
        SpecError
            If the set is too large to be kept.
        """
        epoch, number = place
        if number not in self._kept:
            content, label = self.files.read(number)
            image = self.decoded(content, number)
            if image is None:
                return self.blank(), label, number, True
            _check_size(image.nbytes, len(self.files))
            self._kept[number] = image, label
        image, label = self._kept[number]
        return self.view(image, epoch, number), label, number, False


def _check_size(image_bytes: int, images: int) -> None:
    if image_bytes * images > MOST_BYTES:
        raise SpecError(
            f"loader 'memory' would keep {image_bytes * images / 1e9:.1f} GB ({images:,} images "
            f"of {image_bytes:,} bytes), more than its limit of {MOST_BYTES / 1e9:.0f} GB; "
            "use 'native' or 'turbo', or a smaller train_images"
        )


class Memory(Turbo):
    """Images from memory after the first epoch."""

    samples = KeptSamples
