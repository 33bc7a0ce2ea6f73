"""What a search tries, by machine and data."""

from pathlib import Path

import pytest

from ddl_core.errors import DataError, NotInstalledError, SpecError
from ddl_tools.gpus import Listed
from ddl_tools.launch.slurm.site import find_site
from ddl_tools.recommend import candidates
from ddl_tools.recommend.candidates import Request, difference, epoch_size, site_space, space
from tests.pictures import CLASSES, write_pictures


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "My images", 64, 8)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, 4)


def set_machine(monkeypatch: pytest.MonkeyPatch, cores: int, devices: int = 0) -> None:
    found = candidates.host() | {"cpu_cores": cores}
    listed = Listed("550", ("A100",) * devices) if devices else None
    monkeypatch.setattr(candidates, "host", lambda: found)
    monkeypatch.setattr(candidates.gpus, "listed", lambda: listed)


def request(folder: Path, **others) -> Request:
    return Request("resnet8", folder, **others)


def test_each_core_can_be_a_rank_and_the_data_are_described(images: Path) -> None:
    found = space(request(images))
    base = found.baseline
    assert (base.strategy, base.loader, base.world_size, base.device) == ("ddp", "native", 4, "cpu")
    assert (base.dataset, base.classes, base.train_images) == ("my_images", CLASSES, None)
    changes = found.single_changes()
    assert changes[0] == base
    assert len(changes) == len(set(changes))
    assert {one.world_size for one in changes} == {1, 2, 4}
    assert {one.strategy for one in changes if one.world_size == 1} == {"single"}
    assert all(one.world_size * one.cpu_threads == 4 for one in changes)
    assert "synthetic" not in {one.loader for one in changes}
    assert "dali_gpu" not in {one.loader for one in changes}


def test_a_site_has_its_gpus_and_loaders(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates.registry, "require", lambda kind, name: None)
    for site, dali in (("generic", True), ("frontier", False)):
        machine = find_site(site)
        found = site_space(request(images), machine, 4)
        base = found.baseline
        assert (base.nodes, base.gpus_per_node, base.device) == (4, machine.gpus_per_node, "cuda")
        assert any(one.loader.startswith("dali") for one in found.single_changes()) == dali
        assert {one.precision for one in found.single_changes()} == {"fp32"}


def test_a_machine_of_one_core_has_one_rank(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, 1)
    found = space(request(images))
    assert {(one.strategy, one.world_size) for one in found.single_changes()} == {("single", 1)}
    assert {one.loader for one in found.single_changes()} > {"native"}


def test_gpus_bring_their_settings(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, 16, devices=2)
    found = space(request(images, batch=16))
    assert (found.baseline.device, found.baseline.world_size) == ("cuda", 2)
    changes = found.single_changes()
    assert {one.precision for one in changes} == {"fp32", "bf16"}
    assert any(one.compile for one in changes)
    assert any(one.channels_last for one in changes)
    assert "2 x A100, driver 550" in found.machine
    assert found.changed({"strategy": "fsdp"}, {"channels_last": True}) is None, "refused"
    assert found.changed({"strategy": "horovod"}, {"gpus_per_node": 1}) is None


def test_a_missing_framework_is_named(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require = candidates.registry.require

    def without(kind: str, name: str) -> None:
        if name == "deepspeed":
            raise NotInstalledError("strategy 'deepspeed' needs a package; make env")
        require(kind, name)

    monkeypatch.setattr(candidates.registry, "require", without)
    found = space(request(images))
    assert "deepspeed" not in {one.strategy for one in found.single_changes()}
    assert any(one.startswith("DeepSpeed: ") for one in found.missing)


def test_a_set_of_20_images_lowers_the_batch_and_repeats_images(tmp_path: Path) -> None:
    few = write_pictures(tmp_path / "few", 20, 4)
    found = space(request(few, batch=64, workers=(2,)))
    assert found.baseline.global_batch_size <= 20
    assert epoch_size(found.baseline, 0.1, found.images) == (10, {"min_steps_per_epoch": 10})
    assert epoch_size(found.baseline, 9.0, images=1000) == (2, {"train_images": 40})


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


def test_combinations_are_of_changes_that_help_the_best_first(images: Path) -> None:
    found = space(request(images))
    turbo, dali, two = (
        found.changed(change)
        for change in ({"loader": "turbo"}, {"loader": "dali_cpu"}, found.factors["workers"][0])
    )
    effects = {found.baseline: 0.0, turbo: 0.2, dali: -0.1, two: 0.1}
    (best,) = found.combinations(effects)
    assert (best.loader, best.world_size, best.strategy) == ("turbo", 2, "ddp")
    assert found.combinations({found.baseline: 0.0, turbo: 0.2}) == []
    assert difference(best, found.baseline) == "loader turbo + 2 ranks"
    assert difference(turbo, found.baseline) == "loader turbo"
