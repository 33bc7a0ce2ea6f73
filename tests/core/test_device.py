"""What a record tells of cores and threads."""

import torch

from ddl_core import device


def test_threads_are_those_of_torch() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert device.threads()["compute"] == before + 1
    finally:
        torch.set_num_threads(before)
