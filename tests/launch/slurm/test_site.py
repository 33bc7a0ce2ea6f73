"""Every machine's file can be read, and a wrong one says what is wrong."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from ddl_tools.launch.slurm.site import Site, find_site, known_sites, seconds
from ddl_tools.records.paths import SITES

ROCM = {"lumi", "frontier"}


@pytest.mark.parametrize("name", known_sites())
def test_every_site_loads_and_says_whether_it_was_tried(name: str) -> None:
    found = find_site(name)
    head = (SITES / f"{name}.toml").read_text(encoding="utf-8").split("description =")[0]
    assert ("nothing of this was run on" in head.lower()) != (name == "localtest")
    assert found.dali == (name not in ROCM)
    # A folder in /tmp that a run does not check: `private.require` sees the one for caches.
    assert not [one for one in found.environment.values() if one.startswith("/tmp")]
    assert f"{name}.toml" in (SITES / "README.md").read_text(encoding="utf-8")


def test_the_page_names_every_field() -> None:
    path = SITES.parent / "docs" / "reference" / "study-and-site-files.md"
    fields = path.read_text(encoding="utf-8").split("## Site files")[1].split("\n## ")[0]
    for name in Site.model_fields:
        assert f"`{name}`" in fields


def test_a_site_of_ones_own_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    with pytest.raises(SpecError, match="cannot read the site"):
        find_site(str(path))
    path.write_text('description = "mine"\ncpus_per_rank = 3\n')
    assert find_site(str(path)).cpus_per_rank == 3
    path.write_text("description = ")
    with pytest.raises(SpecError, match="is not a valid site file"):
        find_site(str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('gpu_kind = "a100"', "gpu_kind = 'a100': unknown field; did you mean .*gpu_bind"),
        ('gpu_request = "many"', r"gpu_request = 'many': Input should be 'none', 'gres'"),
        ("cpus_per_rank = 0", r"cpus_per_rank = 0: Input should be greater than 0"),
        ('time = "1h"', r"time = '1h': String should match pattern"),
        ('memory = "some"', r"memory = 'some'"),
        ('sbatch_lines = ["mem=1"]', r"sbatch_lines.0 = 'mem=1'"),
        ('srun_args = ["sh"]', r"srun_args.0 = 'sh'"),
        ('srun_args = ["--export=A B"]', r"srun_args.0 = '--export=A B'"),
        ('srun_args = ["--nodes=1"]', r"srun_args = '--nodes=1': a run says itself"),
        ('srun_args = ["-n4"]', r"srun_args = '-n4': a run says itself"),
        ("gpus_per_node = 4", r"gpu_request = 'none' with gpus_per_node = 4"),
        ('gpu_type = "a100"', r"gpu_type = 'a100' with gpu_request = 'none'"),
        ("[environment]\nA = 'say \"x\"'", r"environment.A"),
        ("[environment]\nHOROVOD_CONTROLLER = 'mpi'", r"set horovod_controller = 'gloo' or 'mpi'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f'description = "x"\n{line}\n')
    with pytest.raises(SpecError, match=message):
        Site.load(path)


FOUR = {"gpus_per_node": 4, "gpu_request": "gres"}


@pytest.mark.parametrize(
    ("of_site", "run", "message"),
    [
        (FOUR, {"strategy": "ddp", "gpus_per_node": 4}, None),
        (FOUR, {"strategy": "ddp", "gpus_per_node": 8, "device": "cpu"}, None),
        (FOUR, {"strategy": "ddp", "gpus_per_node": 8}, "but a node of this site has 4"),
        ({}, {"device": "cuda"}, "this site has no GPUs"),
        ({}, {"strategy": "horovod", "nodes": 16, "device": "cpu"}, None),
        ({}, {"strategy": "horovod", "nodes": 17, "device": "cpu"}, "up to 16; .*WITH_MPI=1"),
        ({}, {"strategy": "ddp", "nodes": 17, "device": "cpu"}, None),
        ({"horovod_controller": "mpi"}, {"strategy": "horovod", "nodes": 17}, None),
        (
            {"horovod_controller": "mpi"},
            {"framework": "tensorflow", "strategy": "horovod", "nodes": 17, "device": "cpu"},
            "with tensorflow Horovod runs over Gloo only",
        ),
        ({"dali": False}, {"loader": "dali_cpu"}, "DALI does not run on this site"),
    ],
)
def test_a_run_has_to_fit_the_site(
    of_site: dict[str, Any], run: dict[str, Any], message: str | None
) -> None:
    refused = pytest.raises(SpecError, match=message) if message else nullcontext()
    with refused:
        Site.model_validate({"description": "x", **of_site}).check(RunSpec(**run))


@pytest.mark.parametrize(
    ("text", "number"), [("00:00:01", 1), ("1:30:00", 5400), ("100:00:00", 360_000)]
)
def test_times(text: str, number: int) -> None:
    assert seconds(text) == number


@pytest.mark.parametrize("text", ["90", "1:60:00", "00:00:00", "1-00:00:00", "01:00:00\n"])
def test_wrong_times(text: str) -> None:
    with pytest.raises(SpecError, match=r"time = .*01:30:00"):
        seconds(text)
