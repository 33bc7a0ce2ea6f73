"""What each loader could deliver per core, against alternatives and against decoding alone.

    python -m benchmarks.loaders [DIR]
    python -m benchmarks.loaders [DIR] --device cuda [--minutes N]

DIR is an image folder, such as that of `ddl data sample`. One thread each, files in memory, 224
pixels, views of training. All candidates are interleaved, each on the same images in new views.
Tiny images have 32 pixels, views of 16, and 8 threads: what limits them is Python, if it limits
anything. About a quarter of an hour.

With --device, only `dali_gpu` (cuda; it decodes on the GPU) or `dali_cpu` (cpu) is compared, with
DALI's own pipeline of the same graph; it is a part of `make gpu`, and on the CPU its rehearsal.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from nvidia import nvimgcodec
from nvidia.dali import fn, tfrecord
from nvidia.dali.pipeline import Pipeline
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks.interleaved import Took, Windows, interleave, ratio, say, seconds, stored
from ddl_core.config import RunSpec
from ddl_core.data.folder import list_images
from ddl_core.data.image import MEAN, STD, CropSampler
from ddl_core.data.sampling import BatchSampler
from ddl_core.data.tfrecord import shards_folder
from ddl_core.loaders.base import open_loader
from ddl_core.loaders.dali import Dali, Files
from ddl_core.models import torchvision
from ddl_tools import limits
from ddl_tools.datasets.bench import exhaust, stages
from ddl_tools.datasets.convert import plan_conversion
from ddl_tools.records.paths import results

MINUTES = 12
BATCH, BATCHES, SIZE = 64, 6, 224
QUIET_S, LOOK_S = 0.1, 0.01
IMAGES = BATCH * BATCHES
STAGES_IMAGES = 256
# With --device: an epoch is a second or two on a GPU; the CPU is a rehearsal.
ON_DEVICE: dict[str, dict[str, Any]] = {
    "cuda": {"local_batch_size": 256, "min_steps_per_epoch": 20},
    "cpu": {"local_batch_size": 16, "image_size": 64},
}
ROUNDS = {"cuda": 8, "cpu": 2}  # at least
FORMS = ("folder", "tfrecord")

# (candidate, baseline, target): candidate / baseline should reach the target.
RATIOS = [
    ("native, folder", "torchvision's own", 1.0),
    ("native, tfrecord", "torchvision's own", None),
    ("dali_cpu, folder", "DALI shuffling, folder", 0.94),
    ("dali_cpu, tfrecord", "DALI shuffling, tfrecord", 0.94),
    ("dali_cpu, tiny images", "DALI shuffling, tiny images", None),
    ("dali_cpu's names alone", "dali_cpu, tiny images", None),
    ("dali_cpu, folder", "native, folder", None),
    ("dali_cpu, tfrecord", "native, tfrecord", None),
    ("turbo, folder", "native, folder", 2.0),
    ("turbo, folder", "dali_cpu, folder", None),
    ("native, folder", "libjpeg-turbo decoding", None),
    ("turbo, folder", "libjpeg-turbo decoding", None),
    ("dali_cpu, folder", "libjpeg-turbo decoding", None),
    ("decoding of crops only", "libjpeg-turbo decoding", None),
]


def chosen(data: Path, folder: Path) -> Path:
    """Copy every n-th image of `data`: NVIDIA's readers take all there are, and sizes differ."""
    for split, number in (("train", IMAGES), ("val", 1)):
        images = list_images(data / split)
        for position in range(number):
            name = Path(images.name(position * len(images) // number))
            (folder / split / name.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(data / split / name, folder / split / name)
    plan_conversion(folder).run()
    return folder


TINY = {"image_size": 16, "loader_workers": 8, "min_steps_per_epoch": 150, "eval_every": 0}


def tiny(data: Path, folder: Path) -> Path:
    """Copy a set with images of 32 pixels."""
    for split in ("train", "val"):
        for path in (data / split).glob("*/*"):
            target = folder / path.relative_to(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.open(path).convert("RGB").resize((32, 32)).save(target, "JPEG")
    return folder


class Epochs:
    """Epochs of a loader of ours: in this process, or with one thread for DALI.

    `prepare` is what a run does before its clock starts.
    """

    def __init__(self, loader: str, form: str, data: Path, **fields: Any) -> None:
        values: dict[str, Any] = {
            "loader": loader,
            "data_format": form,
            "work": "load",
            "image_size": SIZE,
            "local_batch_size": BATCH,
            "loader_workers": int(loader.startswith("dali")),
            "checkpoint_every": 0,
        }
        self.spec = RunSpec(**{**values, **fields})
        self.device = torch.device(self.spec.device if self.spec.device == "cuda" else "cpu")
        self.loader = open_loader(self.spec, data, "train", 0, 1, self.device)
        self._numbers = count()

    def prepare(self) -> None:
        """Choose order and crops."""
        self.loader.set_epoch(next(self._numbers))

    def __call__(self) -> None:
        """Load an epoch."""
        exhaust(self.loader)
        _wait(self.device)


def _wait(device: torch.device) -> None:
    """Wait until a GPU is done, also with what DALI prefetches there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def naming(data: Path) -> Callable[[], None]:
    """Return all that `dali_cpu` does in Python for an epoch: it names the images of each batch."""
    epochs = Epochs("dali_cpu", "folder", data, **TINY)
    epochs.prepare()
    files = epochs.loader._files
    plan = BatchSampler(epochs.spec, "train", len(files), 0, 1)

    def epoch() -> None:
        names = Files(files, plan)
        for _ in range(len(plan)):
            names._names()
            names.named()

    return epoch


def reference(data: Path) -> Callable[[], None]:
    """Return torchvision's ImageNet example: ImageFolder, its transforms, DataLoader."""
    dataset = torchvision.datasets.ImageFolder(
        str(data / "train"),
        torchvision.transforms.Compose(
            [
                torchvision.transforms.RandomResizedCrop(SIZE),
                torchvision.transforms.RandomHorizontalFlip(),
                torchvision.transforms.ToTensor(),
                torchvision.transforms.Normalize(MEAN, STD),
            ]
        ),
    )
    loader = DataLoader(dataset, BATCH, shuffle=True)
    return lambda: exhaust(loader)


def shuffling(form: str, data: Path, name: str = "dali_cpu", **fields: Any) -> Callable[[], None]:
    """Return the pipeline of a loader where DALI's reader shuffles, as NVIDIA's example has it.

    It goes on from epoch to epoch, and hands its batches over as our loader does.
    """
    ours = Epochs(name, form, data, **fields)
    loader, spec = ours.loader, ours.spec
    assert isinstance(loader, Dali)
    pipeline = Pipeline(
        batch_size=spec.local_batch_size, num_threads=spec.loader_workers, seed=1,
        device_id=loader._device_id, prefetch_queue_depth=spec.loader_prefetch,
    )  # fmt: skip
    with pipeline:
        if form == "folder":
            encoded, labels = fn.readers.file(file_root=str(data / "train"), random_shuffle=True)
        else:
            shards = sorted(shards_folder(data).glob("train-*-of-*"))
            features = {
                "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
                "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            }
            record = fn.readers.tfrecord(
                path=[str(shard) for shard in shards],
                index_path=[str(shard.parent / "index" / f"{shard.name}.idx") for shard in shards],
                features=features,
                random_shuffle=True,
            )
            encoded, labels = record["image/encoded"], record["image/class/label"]
        pipeline.set_outputs(loader._training_view(encoded), labels)
    pipeline.build()

    def epoch() -> None:
        for _ in range(len(loader)):
            images, labels = pipeline.run()
            loader._pixels(images)
            numbers = np.array(labels.as_tensor()).ravel().astype(np.int64)
            torch.from_numpy(numbers).to(ours.device, non_blocking=True)
        _wait(ours.device)

    return epoch


def file_contents(data: Path) -> list[bytes]:
    """Return the training files, read into memory."""
    images = list_images(data / "train")
    return [images.read(number)[0] for number in range(len(images))]


def decoding(data: Path) -> Callable[[], None]:
    """Return libjpeg-turbo on the same files in memory, and nothing else."""
    contents = file_contents(data)
    return lambda: exhaust(simplejpeg.decode_jpeg(content, "RGB") for content in contents)


def decoding_crops(data: Path) -> Callable[[], None]:
    """Return nvImageCodec, which comes with DALI, on the crops of training: it skips the rest."""
    contents = file_contents(data)
    views, epochs = CropSampler(RunSpec()), count()
    decoder = nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)],
    )
    as_stored = nvimgcodec.DecodeParams(
        apply_exif_orientation=False, sample_format=nvimgcodec.SampleFormat.I_RGB
    )

    def decoded(epoch: int, number: int) -> np.ndarray:
        image = nvimgcodec.CodeStream(contents[number])
        top, left, height, width, _ = views.draw(epoch, number, image.height, image.width)
        crop = nvimgcodec.Region([top, left], [top + height, left + width])
        return np.asarray(decoder.decode(image.get_sub_code_stream(0, crop), params=as_stored))

    def crops() -> None:
        epoch = next(epochs)
        exhaust(decoded(epoch, number) for number in range(len(contents)))

    return crops


def until_quiet(work: Callable[[], object]) -> Took:
    """Return what ``work()`` took, and all it left working: a pipeline that goes on prefetches.

    What is prefetched now was missing at the beginning. The wall clock ends when work was last
    seen, to `LOOK_S`.
    """
    getattr(work, "prepare", lambda: None)()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    ended, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - ended < QUIET_S:
        time.sleep(LOOK_S)
        before, used = used, time.process_time()
        if used - before > LOOK_S / 10:
            ended = time.perf_counter()
    return Took(ended - wall, used - cpu)


def measured(data: Path, small: Path) -> Windows:
    """Return what every candidate took, round by round."""
    works: dict[str, Callable[[], None]] = {
        f"{loader}, {form}": Epochs(loader, form, data)
        for loader in ("native", "turbo", "dali_cpu")
        for form in ("folder", "tfrecord")
    }
    for form in ("folder", "tfrecord"):
        works[f"DALI shuffling, {form}"] = shuffling(form, data)
    works["dali_cpu, tiny images"] = Epochs("dali_cpu", "folder", small, **TINY)
    works["DALI shuffling, tiny images"] = shuffling("folder", small, **TINY)
    works["dali_cpu's names alone"] = naming(small)
    works["torchvision's own"] = reference(data)
    works["libjpeg-turbo decoding"] = decoding(data)
    works["decoding of crops only"] = decoding_crops(data)
    return interleave(works, MINUTES, until_quiet)


def on_device(data: Path, device: str, minutes: float) -> dict[str, Any]:
    """Compare our DALI loader of a device with DALI's own pipeline of the same graph; print it.

    On a GPU both decode there ("mixed").
    """
    ours, own = f"dali_{'gpu' if device == 'cuda' else 'cpu'}", "DALI shuffling"
    workers = max(1, limits.whole_cores() - 2)  # of 16 cores 14, as in the study one_gpu_loaders
    fields = {"device": device, "loader_workers": workers, **ON_DEVICE[device]}
    with tempfile.TemporaryDirectory() as folder:
        some = chosen(data, Path(folder))
        works: dict[str, Callable[[], None]] = {}
        for form in FORMS:
            works[f"{ours}, {form}"] = epochs = Epochs(ours, form, some, **fields)
            works[f"{own}, {form}"] = shuffling(form, some, ours, **fields)
        took = interleave(works, minutes, until_quiet, ROUNDS[device])
    images = epochs.spec.local_batch_size * len(epochs.loader)
    for name, windows in took.items():
        middle = statistics.median(one.wall for one in windows)
        print(f"{name:26}{images / middle:>9.0f} images/s")
    rows = [ratio(took, f"{ours}, {form}", f"{own}, {form}") for form in FORMS]
    for row in rows:
        print(say(row))
    return {"ratios": rows, "images": images, "workers": workers, "windows_s": seconds(took)}


def measure(data: Path) -> dict[str, Any]:
    """Measure and print."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        some = chosen(data, Path(folder) / "some")
        took = measured(some, tiny(some, Path(folder) / "tiny"))
    rows = [ratio(took, *three) for three in RATIOS]
    for row in rows:
        print(say(row))
    shares = {}
    for loader in ("native", "turbo"):
        spec = RunSpec(loader=loader, local_batch_size=STAGES_IMAGES, image_size=SIZE)
        rates = {rate.what: rate.images_per_core_s for rate in stages(spec, data)}
        total = sum(1 / rate for rate in rates.values())
        shares[loader] = {name: 1 / rate / total for name, rate in rates.items()}
        text = ", ".join(f"{name} {share:.0%}" for name, share in shares[loader].items())
        print(f"where the time of {loader} goes: {text}")
    return {
        "ratios": rows,
        "stage_shares": shares,
        "images": IMAGES,
        "image_size": SIZE,
        "windows_s": seconds(took),
    }


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders")
    parser.add_argument("data", type=Path, nargs="?", default=results().dataset("sample"))
    parser.add_argument("--device", choices=list(ON_DEVICE))
    parser.add_argument("--minutes", type=float, default=2, help="with --device")
    asked = parser.parse_args()
    if asked.device:
        name = f"loaders_{asked.device}"
        stored(name, lambda: on_device(asked.data, asked.device, asked.minutes))
    else:
        stored("loaders", lambda: measure(asked.data))


if __name__ == "__main__":
    main()
