"""Copies to a GPU: on a stream of their own, one batch ahead, and nothing asked for in vain."""

from pathlib import Path

import pytest
import torch

from ddl_core.loaders.native import copied_ahead
from tests.core.loaders.paths import open_loader
from tests.fake_gpu import GPU, Streams
from tests.pictures import CLASSES, write_pictures


def test_a_batch_is_copied_while_the_one_before_it_is_used(monkeypatch):
    streams = Streams(monkeypatch)

    def send(number):
        streams.log.append(f"{number} is copied by {streams.current.name}")
        return number

    for number in copied_ahead(iter(range(3)), send, torch.cuda.Stream(GPU)):
        streams.log.append(f"{number} is used by {streams.current.name}")

    room = "copying waits for computing"  # that of a batch that is not computed with any more
    there = "computing waits for copying"
    assert streams.log == [
        *(room, "0 is copied by copying"),
        *(there, room, "1 is copied by copying", "0 is used by computing"),
        *(there, room, "2 is copied by copying", "1 is used by computing"),
        *(there, "2 is used by computing"),
    ]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"), 14, 6)


def loader_on(device, name: str, root: Path, split: str):
    fields = {"classes": CLASSES, "image_size": 16, "pin_memory": False}
    all_of_them = {"train_images": None, "eval_images": None}
    return open_loader(name, root, split, device=device, **fields, **all_of_them)


@pytest.mark.parametrize("name", ["native", "turbo"])
@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_gpu_gets_what_a_cpu_gets(name, split, pictures, monkeypatch):
    streams = Streams(monkeypatch)
    on_cpu = loader_on(torch.device("cpu"), name, pictures, split)
    on_gpu = loader_on(GPU, name, pictures, split)
    for loader in (on_cpu, on_gpu):
        loader.set_epoch(1)
    count = 0
    for (images, labels), (want, want_labels) in zip(on_gpu, on_cpu, strict=True):
        count += 1
        assert torch.equal(images, want)
        assert torch.equal(labels, want_labels)
        # An image counts when it is used, not when it is copied.
        assert len(on_gpu.seen) == len(on_cpu.seen) == count
    assert count == len(on_cpu)
    assert streams.log.count("computing waits for copying") == count


def test_no_batch_beyond_the_last_is_asked_for(pictures, monkeypatch):
    Streams(monkeypatch)
    loader = loader_on(GPU, "native", pictures, "train")
    batches = list(loader._loader)

    def only_these():
        yield from batches
        raise AssertionError("one batch too many: the loader's processes are ended in the window")

    monkeypatch.setattr(loader, "_loader", only_these())
    assert len(list(loader)) == len(loader) == 3
