"""Networks of others: which can be trained, what is refused and how, what is recorded of them."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ddl_core.combinations import check
from ddl_core.config import RunSpec
from ddl_core.errors import NotInstalledError, SpecError
from ddl_core.models import drawn, inspect_network
from ddl_core.registry import known, require, resolve, title
from ddl_tools.rank.weights import values
from ddl_tools.records.failures import classify

OWN = """
from functools import partial

import torch
from torch import nn

def normed(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8) if classes == 3 else nn.Linear(3072, 8),
                         nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, classes))

class TwoLosses(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(3072, classes)

    def forward(self, images):
        logits = self.head(images.flatten(1))
        return (logits, logits) if self.training else logits

class OfText(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words = nn.Embedding(10, classes)

    def forward(self, words):
        return self.words(words)

class Heavy(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(3072, classes)

    def forward(self, images):
        return self.head(images.flatten(1)) + torch.empty(2**50).sum()

def forgotten(classes):
    normed(classes)

def one_class_more(classes):
    return normed(classes + 1)

def nothing(classes):
    return nn.Flatten()

def frozen(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes)).requires_grad_(False)

class Maker:
    def __call__(self, classes):
        return normed(classes)

made, bound = Maker(), partial(normed)
"""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "ours.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("ours", None)


def spec(model: str, **fields: object) -> RunSpec:
    return RunSpec(**{"model": model, "image_size": 32, "classes": 5, **fields})


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("resnet8", None),
        ("ours:normed", 3072 * 8 + 8 + 16 + 8 * 5 + 5),
        ("torchvision/mobilenet_v3_small", None),
        ("torchvision/googlenet", None),  # in training it returns three logits by default
        ("torchvision/vit_b_16", None),
        ("timm/test_vit", None),
        ("timm/test_resnet", None),
    ],
)
def test_a_classifier_of_images_is_served(model: str, parameters: int | None) -> None:
    asked = spec(model)
    network = drawn(asked)
    before = {name: tensor.copy() for name, tensor in values(network.state_dict()).items()}
    state = torch.random.get_rng_state()
    facts = inspect_network(network, asked)
    assert facts["parameters"] == sum(one.numel() for one in network.parameters())
    assert parameters is None or facts["parameters"] == parameters
    assert facts["input"] == [3, 32, 32]
    assert facts["forward_flop"] > facts["parameters"] / 10
    assert torch.equal(state, torch.random.get_rng_state())
    after = values(network.state_dict())
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_the_work_is_that_of_one_image() -> None:
    """Stevens et al. count 4.1e9 multiply-adds of ResNet50 on 224 pixels."""
    asked = spec("resnet50", image_size=224, classes=1000)
    facts = inspect_network(drawn(asked), asked)
    assert facts["forward_flop"] == pytest.approx(2 * 4.1e9, rel=0.02)


@pytest.mark.parametrize("name", ["normed", "made", "bound"])
def test_the_file_of_ones_own_network_is_known_again(tmp_path: Path, name: str) -> None:
    asked = spec(f"ours:{name}")
    digest = hashlib.sha256((tmp_path / "ours.py").read_bytes()).hexdigest()
    assert inspect_network(drawn(asked), asked)["source_sha256"] == digest
    other = spec("resnet8")
    assert inspect_network(drawn(other), other)["source_sha256"] is None


@pytest.mark.parametrize(
    ("model", "fields", "match"),
    [
        ("ours:TwoLosses", {}, "returns tuple in training, not a tensor"),
        ("ours:OfText", {}, r"fails on images of shape \(3, 32, 32\) .image_size = 32.: RuntimeE"),
        ("ours:one_class_more", {}, r"returns shape \(2, 6\) of 2 images, but classes = 5"),
        ("ours:forgotten", {}, "returns NoneType, not a torch.nn.Module"),
        ("ours:nothing", {}, "has no parameters"),
        ("ours:frozen", {}, "no trainable parameters"),
        ("ours:normed", {"classes": 3}, "has sizes that are open until it sees images"),
        ("ours:normed", {"image_size": 64}, r"fails on images of shape \(3, 64, 64\)"),
        ("resnet18", {"local_batch_size": 1}, "local_batch_size = 1 at image_size = 32: .* use 2"),
    ],
)
def test_what_the_loop_cannot_train_is_refused(model: str, fields: dict, match: str) -> None:
    asked = spec(model, **fields)
    with pytest.raises(SpecError, match=match):
        inspect_network(drawn(asked), asked)


def test_too_little_memory_is_no_fault_of_the_network() -> None:
    asked = spec("ours:Heavy")
    with pytest.raises(RuntimeError, match="allocate memory") as found:
        inspect_network(drawn(asked), asked)
    assert classify(type(found.value).__name__, str(found.value)) == "out_of_memory"


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        ("torchvision/resnet5", SpecError, "no classifier of that name; did you mean resnet5"),
        ("timm/convnext_tyny", SpecError, "no classifier of that name; did you mean convnext_tiny"),
        ("theirs:build", NotInstalledError, "'theirs', which is not .* PYTHONPATH=FOLDER_WITH_the"),
        ("ours:missing", SpecError, "is announced as ours:missing, but there is no such thing"),
    ],
)
def test_a_network_that_is_not_there_is_named(
    model: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        drawn(spec(model))


def test_a_package_that_a_network_imports_is_to_be_installed(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("import not_there_at_all\n")
    with pytest.raises(NotInstalledError, match=r"'not_there_at_all', .*; install it, or choose"):
        drawn(spec("ours:normed"))


@pytest.mark.parametrize("model", ["torchvision/", "other/net", "a:b:c", "a b:c", ":x", "x:"])
def test_no_other_name_is_one(model: str) -> None:
    with pytest.raises(SpecError, match=r"or torchvision/NAME, timm/NAME, package.module:function"):
        resolve("model", model)
    assert known("model", model) is None


def test_a_run_is_named_after_it() -> None:
    assert "-torchvision-vit_b_16-1x1-" in spec("torchvision/vit_b_16").run_id
    assert "-ours.nets-normed-1x1-" in spec("ours.nets:normed").run_id
    assert title("model", "timm/convnext_tiny") == "convnext_tiny (timm)"
    assert title("model", "ours:normed") == "ours:normed"
    require("model", "timm/convnext_tiny")


def test_other_libraries_have_none_of_them() -> None:
    with pytest.raises(
        SpecError, match="model 'timm/convnext_tiny' is not one of framework 'mxnet'"
    ):
        check(spec("timm/convnext_tiny", framework="mxnet"), "cpu")
