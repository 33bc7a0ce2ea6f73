"""Runs whose ranks are in a container, on a real SLURM: Charliecloud, on two emulated nodes."""

import json
import os
import platform
from pathlib import Path

import pytest

from ddl_tools.emulation.local_slurm import EmulatedSlurm
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import SITES, results
from ddl_tools.records.run import read_record
from ddl_tools.study import Study
from tests.launch.running import ddl, error_of, study_file
from tests.launch.slurm.images import INSIDE, charliecloud
from tests.launch.slurm.test_real_slurm import left_queue, log_of
from tests.pictures import write_pictures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.slurm,
    pytest.mark.timeout(900),
]

# What requirements/train.txt adds to those of the analysis.
OF_TRAINING = ("torch", "torchvision", "timm", "deepspeed", "simplejpeg", "skimage", "sklearn")


def site_of(folder: Path, container: dict[str, object]) -> Path:
    """Write the site of the emulated nodes, with a container."""
    path = folder / "inside.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in container.items()]
    text = (SITES / "localtest.toml").read_text()
    path.write_text("\n".join([text, "[container]", *lines, ""]))
    return path


def test_ranks_of_a_study_run_inside_and_its_notebook_outside(
    tmp_path: Path, localtest: EmulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path, charliecloud(tmp_path / "image"))
    for name in OF_TRAINING:
        broken = tmp_path / "modules" / name / "__init__.py"
        broken.parent.mkdir(parents=True)
        broken.write_text("raise ImportError('not outside')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"), prepend=os.pathsep)
    images = write_pictures(tmp_path / "images", 32, 8)
    fields = {"strategy": "ddp", "nodes": 2, "loader": "native", "train_images": 32}
    path = study_file(tmp_path, **fields)
    ddl("study", "submit", path, "--site", site, "--data", images, status=0)
    (item,) = ledger(Study.load(path), results())
    left_queue(item.directory)
    record = read_record(item.directory)
    assert record.status == "completed", log_of(item.directory)
    assert record.provenance is not None
    assert record.provenance["container"] == "charliecloud image"
    assert record.provenance["from_outside"] == []
    assert not INSIDE.exists()  # so its Python, which the site names, was one of the image
    assert (item.directory / "run.ipynb").exists()


@pytest.mark.extended
def test_an_image_that_does_not_start_is_the_reason_of_its_run(
    tmp_path: Path, localtest: EmulatedSlurm
) -> None:
    container = charliecloud(tmp_path / "image")
    site = site_of(tmp_path, {**container, "python": "/no/such/python"})
    path = study_file(tmp_path)
    ddl("study", "submit", path, "--site", site, status=0)
    (item,) = ledger(Study.load(path), results())
    left_queue(item.directory)
    assert "/no/such/python" in error_of(item.directory).message
    site_of(tmp_path, {**container, "image": str(tmp_path / "gone")})
    ddl("study", "submit", path, "--site", site, "--retry-failed", status=0)
    left_queue(item.directory)
    assert "gone" in error_of(item.directory).message


def test_the_doctor_starts_the_image_on_the_nodes(tmp_path: Path, localtest: EmulatedSlurm) -> None:
    site = site_of(tmp_path, charliecloud(tmp_path / "image"))
    images = write_pictures(tmp_path / "images", 4, 4)
    words = ("--site", site, "--data", images, "--loader-workers", 1, "--wait", 4, "--json")
    found = {one["subject"]: one for one in json.loads(ddl("doctor", *words).stdout)["findings"]}
    assert "torch" not in found  # outside
    assert found["image"]["detail"].startswith(f"{tmp_path / 'image'} on ")
    assert found["ranks"]["state"] == "ok", found
    assert found["reading"]["detail"].split()[0].isdigit(), found
    assert (
        f"charliecloud image, with Python {platform.python_version()}"
        in (found["container"]["detail"])
    )
