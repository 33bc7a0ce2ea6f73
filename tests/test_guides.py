"""The pages on adding a framework, a loader, a network and a machine tell the truth."""

import re
from pathlib import Path

import pytest

from ddl_tools.records.paths import PROJECT
from tests import pages
from tests.guides import LIBRARY, PAGES, followed
from tests.pictures import write_pictures

CLUSTER = "how-to/describe-a-cluster.md"
STUDY = """
name: new
question: Does a name that is new stand in every list and figure?
base: {gpus_per_node: 2, image_size: 96, local_batch_size: 16, epochs: 3, train_images: 320}
axes: {strategy: [ddp, manual], loader: [native, halfway], model: [resnet50, lenet]}
repeats: 1
"""
NAMES = ("all-reduce by hand", "turbo with Pillow", "LeNet")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = followed(tmp_path_factory.mktemp("guides"))
    (copy / "studies" / "new.yaml").write_text(STUDY)
    pages.write(list(pages.files(CLUSTER)), CLUSTER, copy)
    return copy


def ddl(project: Path, *words: str) -> str:
    return pages.ddl(project, project, *words)


def test_the_new_names_stand_in_every_list(project: Path) -> None:
    plan = ddl(project, "study", "plan", "new", "--dry-run")
    assert plan.count("missing ") == 8
    words = ("--site", "mymachine", "--dry-run", "--all-scripts")
    jobs = ddl(project, "study", "submit", "new", *words)
    assert jobs.count("#SBATCH --gres=gpu:2") == 8
    for name in NAMES:
        assert name in jobs
    offered = ddl(project, "run", "--help")
    assert all(name in offered for name in ("manual", "halfway", "lenet"))


def test_the_job_of_a_cluster_is_the_one_shown(project: Path) -> None:
    (asked,) = pages.commands(CLUSTER)
    *_, job = ddl(project, *asked).split("#!/")
    text = (PROJECT / "docs" / CLUSTER).read_text()
    (shown,) = re.findall(r"```\n(#SBATCH.*?)```", text, re.S)
    lines = shown.splitlines()
    assert len(lines) == 9
    assert [line for line in job.splitlines() if line in lines] == lines


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_new_library_trains_as_torch_does(project: Path, tmp_path: Path) -> None:
    assert "DDL_PYTHON_PLAIN" in (PROJECT / "docs" / LIBRARY).read_text()
    compared = f"""
import os, sys
from pathlib import Path
sys.path.append({str(PROJECT)!r})
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[-1:])
os.environ["DDL_PYTHON_PLAIN"] = sys.executable
from tests.frameworks.equality import Training, assert_equal
training = Training({{}})
got = training.run(Path({str(tmp_path)!r}) / "two", "plain", "sockets")
assert_equal(got, training.torch)
"""
    pages.python(project, project, "-c", compared)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.extended
@pytest.mark.parametrize("page", PAGES)
def test_the_new_names_train(page: str, project: Path, tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "images", 80, 20)
    (words,) = (words for words in pages.commands(page) if words[0] == "run")
    said = ddl(project, *words, "--data", str(images), "--results", str(tmp_path / "results"))
    assert "completed" in said
