"""The loader that keeps its images: read once, and never too many of them."""

import pytest
import torch

from ddl_core.data.dataset import Dataset
from ddl_core.errors import SpecError
from ddl_core.loaders import turbo
from tests.core.loaders.paths import images_of, open_loader


def test_each_file_is_read_once_in_a_run(data, monkeypatch):
    reads: list[int] = []
    plain = Dataset.read
    monkeypatch.setattr(
        Dataset, "read", lambda self, number: reads.append(number) or plain(self, number)
    )
    loader = open_loader("memory", data, loader_workers=0, local_batch_size=17)
    first, second = images_of(loader, 0), images_of(loader, 1)
    assert first.keys() == second.keys() == set(reads)
    assert len(reads) == len(first)
    assert any(not torch.equal(first[number][0], second[number][0]) for number in first)


def test_a_set_too_large_to_keep_is_refused(data, monkeypatch):
    monkeypatch.setattr(turbo, "MOST_BYTES", 1_000_000)
    loader = open_loader("memory", data, loader_workers=0)
    with pytest.raises(SpecError, match=r"would keep .* GB .*'native' or 'turbo'"):
        images_of(loader, 0)
