"""What a search tries, by machine and data."""

from pathlib import Path

import pytest

from ddl_core.errors import DataError, NotInstalledError, SpecError
from ddl_tools.gpus import Listed
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.recommend import search_space
from ddl_tools.recommend.plan import changed
from ddl_tools.recommend.search_space import (
    Request,
    change,
    epoch_size,
    plan_text,
    site_space,
    space,
)
from ddl_tools.scaling import candidate
from tests.pictures import CLASSES, write_pictures


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "My images", 64, 8)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, 4)


def set_machine(monkeypatch: pytest.MonkeyPatch, cores: int, devices: int = 0) -> None:
    found = search_space.host() | {"cpu_cores": cores}
    listed = Listed("550", ("A100",) * devices) if devices else None
    for module in (search_space, candidate):
        monkeypatch.setattr(module, "host", lambda: found)
    monkeypatch.setattr(search_space.gpus, "listed", lambda: listed)
    monkeypatch.setattr(search_space.gpus, "capability", lambda: (8, 0))


def request(folder: Path, **others) -> Request:
    return Request("resnet8", folder, **others)


def test_each_core_can_be_a_rank_and_the_data_are_described(images: Path) -> None:
    found = space(request(images))
    base = found.default
    assert (base.strategy, base.loader, base.world_size, base.device) == ("ddp", "native", 4, "cpu")
    assert (base.dataset, base.classes, base.train_images) == ("my_images", CLASSES, None)
    assert base.precision == "fp32"
    names = {level["loader"] for level in found.loaders}
    assert names >= {"native", "turbo"}
    assert not names & {"synthetic", "memory", "dali_gpu"}
    assert not {"ddp", "single"} & {*found.strategies}
    assert (found.larger, found.compiles) == ([], False)


def test_fewer_ranks_share_all_cores_and_the_global_batch(images: Path) -> None:
    found = space(request(images))
    fewer = changed(found.default, *found.ranks)
    assert [one.world_size for one in fewer] == [2, 1]
    assert fewer[-1].strategy == "single"
    assert all(one.world_size * one.cpu_threads == 4 for one in fewer)
    assert {one.global_batch_size for one in fewer} == {found.default.global_batch_size}
    assert change(fewer[0], found.default).endswith("2 ranks")


def test_one_rank_compares_no_strategies(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, 1)
    found = space(request(images))
    assert (found.default.strategy, found.default.world_size) == ("single", 1)
    assert (list(found.strategies), list(found.ranks)) == ([], [])
    assert len(found.loaders) > 1


def test_what_saves_memory_is_named_in_the_plan(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_space.registry, "require", lambda kind, name: None)
    found = space(request(images))
    text = plan_text(request(images), found)
    line = next(one for one in text.splitlines() if "runs out of memory" in one)
    places = [line.index(one) for one in (
        "bucket view", "ZeRO stage 1", "ZeRO stage 2", "FSDP", "ZeRO stage 3", "checkpointing",
    )]  # fmt: skip
    assert places == sorted(places)
    set_machine(monkeypatch, 1)
    alone = space(request(images))
    assert alone.savings == [{"activation_checkpointing": True}]


def test_gpus_bring_their_settings(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, 16, devices=2)
    monkeypatch.setattr(search_space.registry, "require", lambda kind, name: None)
    found = space(request(images, batch=4))
    base = found.default
    assert (base.device, base.world_size, base.precision) == ("cuda", 2, "torch")
    assert found.settings == [{"precision": "bf16", "channels_last": True}], "one level"
    assert found.compiles
    assert list(found.larger) == [8, 16, 32], "at most all images in a step"
    assert list(found.ranks) == [], "all GPUs, unless others are asked for"
    assert {"loader": "dali_gpu", "dali_decode": "cpu"} in found.loaders
    assert "2 x A100, driver 550" in found.machine
    assert "bf16, channels last" in plan_text(request(images), found)
    best = changed(base, *found.settings)[0]
    assert changed(best, {"strategy": "fsdp"}) == [], "refused"


def test_a_site_has_its_gpus_and_loaders(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_space.registry, "require", lambda kind, name: None)
    for name, dali in (("generic", True), ("frontier", False)):
        machine = find_site(name)
        found = site_space(request(images), machine)
        assert (found.default.nodes, found.default.device) == (1, "cuda")
        assert found.default.gpus_per_node == machine.gpus_per_node
        assert any(one["loader"].startswith("dali") for one in found.loaders) == dali


def test_a_gpu_without_bfloat16_trains_in_fp16(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, 16, devices=1)
    monkeypatch.setattr(search_space.gpus, "capability", lambda: (7, 0))
    assert space(request(images)).settings == [{"precision": "fp16", "channels_last": True}]


def test_precision_and_largest_batch_can_be_chosen(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, 16, devices=1)
    found = space(request(images, precision="tf32", batch=4, max_batch=16))
    assert found.default.precision == "tf32"
    assert found.settings == [{"channels_last": True}]
    assert list(found.larger) == [8, 16]


def test_a_missing_framework_is_named(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require = search_space.registry.require

    def without(kind: str, name: str) -> None:
        if name == "deepspeed":
            raise NotInstalledError("strategy 'deepspeed' needs a package; make env")
        require(kind, name)

    monkeypatch.setattr(search_space.registry, "require", without)
    found = space(request(images))
    assert "deepspeed" not in found.strategies
    assert any(one.startswith("DeepSpeed: ") for one in found.missing)
    assert "not tried: DeepSpeed: " in plan_text(request(images), found)


def test_a_set_of_20_images_lowers_the_batch_and_repeats_images(tmp_path: Path) -> None:
    few = write_pictures(tmp_path / "few", 20, 4)
    found = space(request(few, batch=64, workers=(2,)))
    assert found.default.global_batch_size <= 20
    assert epoch_size(found.default, 0.1, found.images) == {"min_steps_per_epoch": 10}
    long = epoch_size(found.default, 9.0, images=1000)
    assert long == {"train_images": 40, "min_steps_per_epoch": 2}


def test_what_cannot_be_tried_is_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--workers 8: this machine has 4 cores"):
        space(request(images, workers=(8,)))
    with pytest.raises(DataError, match="does not exist"):
        space(request(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match="unknown model"):
        space(Request("resnet9", images))
    few = write_pictures(tmp_path / "few", 4, 4)
    for image in sorted((few / "train").rglob("*.JPEG"))[1:]:
        image.rename(image.with_suffix(".txt"))
    with pytest.raises(DataError):
        space(request(few))
