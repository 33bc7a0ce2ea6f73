"""The search as one SLURM job: its script and cost, what each call does, and the answer's studies.

SLURM's programs are stand-ins, and made-up files take the place of what the job writes.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ddl_core.errors import SpecError
from ddl_tools.launch.local_ranks import SERVER
from ddl_tools.launch.measuring import HELD
from ddl_tools.launch.slurm.script import JobPlan
from ddl_tools.recommend.answer import answer_file, training_file, write_study_file
from ddl_tools.recommend.search_space import Request
from ddl_tools.recommend.site import SiteSearch, nodes_study
from ddl_tools.records.paths import SITES, results
from ddl_tools.study import Study
from tests.commands import output, run
from tests.launch.running import ddl
from tests.launch.stand_ins import StandIns
from tests.pictures import write_pictures

LINES = "use           PyTorch-DDP, turbo\nstart         ddl study run FILE\n"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "images", 96, 8)


def recommend(images: Path, *words: Any, status: int = 0) -> Result:
    asked = ("--model", "resnet8", "--data", images, "--site", "localtest")
    return ddl("recommend", *asked, *words, status=status)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def state() -> dict[str, Any]:
    """Return the state of the only search."""
    (path,) = (results().root / "recommend").glob("*.job.json")
    return {**json.loads(path.read_text()), "name": path.name.removesuffix(".job.json")}


def queue(stand_ins: StandIns, *states: str) -> None:
    """Let SLURM's queue hold the job of the only search, in a state; none: it is empty."""
    found = state() if states else {}
    lines = [f"{found['job_id']}|ddl-{found['name']}|{one}|Priority\n" for one in states]
    stand_ins.add("squeue", "".join(lines))


def answer(**base: Any) -> str:
    """Write what the job of the only search writes with its answer; return the search's name."""
    name = state()["name"]
    file = training_file(results(), name)
    fields = {"model": "resnet8", "strategy": "ddp", "gpus_per_node": 4, "device": "cpu", **base}
    write_study_file(Study(name=file.stem, question="?", base=fields, repeats=1), results())
    answer_file(results(), name).write_text(LINES)
    return name


def search(site: str, images: Path, *words: str, **options: Any) -> SiteSearch:
    asked = Request("resnet8", images, minutes=20)
    return SiteSearch(asked, words, results(), str(site), JobPlan(**options))


def test_a_dry_run_shows_cost_and_script_and_submits_nothing(images: Path, sbatch: Path) -> None:
    shown = recommend(images, "--minutes", 20, "--dry-run").output
    assert "data: 96 training images in" in shown
    assert "PyTorch-DDP" in shown
    assert "if the default runs out of memory: " in shown
    assert "turbo" in shown
    assert "cost: at most 0.50 node-hours, one node for 00:30:00 (20 min of search, 10" in shown
    assert "#SBATCH --time=00:30:00\n" in shown
    assert "nothing was submitted" in shown
    assert not sbatch.exists()
    assert not results().root.exists()


def test_the_job_repeats_the_words_of_the_call(images: Path, sbatch: Path) -> None:
    """In the order of the command, without what concerns the job, and with absolute paths."""
    given = ("--image-size", 32, "--epochs=5", "--workers", "1,2", "--minutes", 3, "--account", "a")
    of_call = ("--site", "localtest", "--max-node-hours", 2)
    ddl("recommend", "--data", os.path.relpath(images), *given, *of_call, status=0)
    found = state()
    head, *words = found["words"]
    assert head == "recommend"
    assert words == [
        *("--minutes=3", "--workers=1,2", "--epochs=5", "--image-size=32"),
        *(f"--data={images}", f"--results={results().root}", f"--as={found['name']}"),
    ]
    assert found["job_id"] == "1"
    # The job's command is one of `ddl`.
    assert "96 training images" in ddl(head, *words[:1], *words[2:], "--dry-run", status=0).output


def test_the_cost_is_limited(images: Path, sbatch: Path) -> None:
    refused = recommend(images, "--minutes", 50, "--max-node-hours", "0.5", status=1)
    assert "cost: at most 1.00 node-hours" in said(refused)
    assert "1.00 node-hours, more than --max-node-hours 0.5" in said(refused)
    assert "lower --minutes, or allow at least 1" in said(refused)
    assert not sbatch.exists()


def test_a_job_above_the_limit_of_the_site_names_the_minutes_that_fit(
    images: Path, sbatch: Path, tmp_path: Path
) -> None:
    site = tmp_path / "short.toml"
    site.write_text('description = "x"\ntime_max = "00:25:00"\n')
    refused = ddl("recommend", "--data", images, "--site", site, "--minutes", 20, status=1)
    assert "asks for 00:30:00, but a job of this site may last 00:25:00" in said(refused)
    assert "lower --minutes to at most 15, or name a --partition" in said(refused)
    assert not sbatch.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-node-hours", "3"), "--max-node-hours are of SLURM jobs; name a --site"),
        (("--site", "localtest", "--max-node-hours", "inf"), "inf is not a finite number"),
        (("--site", "localtest", "--max-node-hours", "nan"), "nan is not a finite number"),
        (("--minutes", "inf"), "inf is not a finite number"),
    ],
)
def test_a_limit_that_limits_nothing_is_refused(words: tuple[str, ...], told: str) -> None:
    assert told in said(ddl("recommend", *words, status=2))


@pytest.mark.usefixtures("sbatch")
def test_a_site_that_cannot_be_used_is_an_error(images: Path, tmp_path: Path) -> None:
    for site, message in (
        ("nowhere", "unknown site 'nowhere'; choose one of: clariden, frontier"),
        ("juwels_booster", "name it with --account PROJECT"),
        ("lumi", "finds NVIDIA's GPUs only"),
    ):
        refused = ddl("recommend", "--data", images, "--site", site, status=1)
        assert message in said(refused)
    inside = tmp_path / "inside.toml"
    inside.write_text('description = "x"\n[container]\nruntime = "pyxis"\nimage = "x"\n')
    refused = ddl("recommend", "--data", images, "--site", inside, status=1)
    assert "run in a container" in said(refused)
    refused = ddl("recommend", "--data", images, "--site", "generic", "--workers", "8", status=1)
    assert "--workers 8: a node of this site has 4 GPUs" in said(refused)


@pytest.mark.parametrize(
    ("site", "there", "absent"),
    [
        ("generic", "--ntasks-per-node=4\n#SBATCH --cpus-per-task=8\n", "DDL_SRUN="),
        ("generic", "--gpus-per-node=4\n", "srun --nodes"),
        ("generic", "#SBATCH --exclusive\n", "MASTER_ADDR"),
        ("juwels_booster", "module load Stages/2025", "HOROVOD_CONTROLLER"),
        ("juwels_booster", "#SBATCH --gres=gpu:4\n", "--exclusive"),
        ("juwels_booster", "#SBATCH --signal=B:TERM@120\n#SBATCH --no-requeue\n", "USR1"),
        ("localtest", "--ntasks-per-node=1\n#SBATCH --cpus-per-task=1\n", "nvidia-smi"),
        ("localtest", "#SBATCH --exclusive\n", "--gpus"),
    ],
)
def test_a_job_has_one_whole_node(images: Path, site: str, there: str, absent: str) -> None:
    text = search(site, images, account="project1").script()
    assert "#SBATCH --nodes=1\n" in text
    assert there in text
    assert absent not in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_where_steps_get_the_gpus_one_step_has_all(images: Path, tmp_path: Path) -> None:
    site = tmp_path / "steps.toml"
    site.write_text('description = "x"\ngpus_per_node = 4\ngpu_request = "gpus_per_task"\n')
    text = search(str(site), images).script()
    assert (
        'step=(srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS' in text
    )
    assert "--gpus-per-task=4 --cpu-bind=none --gpu-bind=none)" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def shown_by(script: str, **variables: object) -> str:
    """Execute the script of a job with `env` in the place of the search."""
    body, command = script.rstrip().rsplit("\n", 1)
    assert command.startswith('exec "${step[@]}" ')
    return output("bash", "-c", f'{body}\nexec "${{step[@]}}" env', **variables)


def test_the_search_starts_no_steps(images: Path, tmp_path: Path, stand_ins: StandIns) -> None:
    """Also where the job was submitted from a kernel that does, or by a measurement."""
    given = {
        "DDL_SRUN": "srun",
        "DDL_CONTAINER": "{}",
        SERVER: "/socket",
        HELD: "1",
        "TMPDIR": tmp_path,
        "PYTHONPATH": ":/a:",
        "SLURM_JOB_ID": 17,
    }
    shown = shown_by(search("localtest", images).script(), **given)
    assert not re.search(rf"^(DDL_SRUN|DDL_CONTAINER|{SERVER}|{HELD})=", shown, re.MULTILINE)
    assert re.search(r"^PYTHONPATH=\S+:/a$", shown, re.MULTILINE)


def test_a_node_without_a_gpu_ends_the_job(
    images: Path, tmp_path: Path, stand_ins: StandIns
) -> None:
    text = search("generic", images).script()
    stand_ins.add("nvidia-smi", "GPU 0: A100\n")
    assert "GPU 0: A100" in shown_by(text, TMPDIR=tmp_path)
    stand_ins.add("nvidia-smi", status=9)
    done = run("bash", "-c", text, TMPDIR=tmp_path)
    assert done.returncode == 1
    assert "nvidia-smi lists no GPU" in done.stdout


def test_each_call_says_what_became_of_the_job(
    images: Path, sbatch: Path, stand_ins: StandIns
) -> None:
    first = recommend(images)
    assert "submitted: job 1\n" in first.output
    name = state()["name"]
    assert sbatch.read_text() == f"--parsable {results().root / 'recommend' / name}.sh\n"
    queue(stand_ins, "PENDING")
    assert "job 1, submitted 20" in (waiting := recommend(images).output)
    assert "PENDING (Priority)" in waiting
    assert "squeue --jobs 1\n" in waiting
    queue(stand_ins, "RUNNING")
    log = results().root / "recommend" / f"{name}.log"
    log.write_text("here: 4 GPUs\nround 3\n")
    running = recommend(images).output
    assert "RUNNING\n" in running
    assert "last lines of" in running
    assert "round 3\n" in running
    answer()
    queue(stand_ins)
    ended = recommend(images).output
    assert ended.startswith(LINES)
    assert len(sbatch.read_text().splitlines()) == 1


def test_an_answer_names_the_training_and_a_study_of_more_nodes(
    images: Path, sbatch: Path, stand_ins: StandIns
) -> None:
    options = ("--account", "a", "--partition", "p")
    recommend(images, *options)
    name = answer()
    shown = recommend(images, *options).output
    commands = re.findall(r"ddl study submit (\S+\.yaml) --data (\S+) (.*)$", shown, re.MULTILINE)
    given = "--site localtest --account a --partition p"
    training, nodes = commands
    assert training == (str(training_file(results(), name)), str(images), given)
    assert nodes[1:] == (str(images), f"{given} --dry-run")
    path = Path(nodes[0])
    assert path.name == f"{name}_nodes.yaml"
    runs = Study.load(path).expand()
    assert {one.nodes for one in runs} == {1, 2, 4}
    assert {(one.model, one.strategy, one.gpus_per_node, one.epochs) for one in runs} == {
        ("resnet8", "ddp", 4, 3)
    }
    # Changes of the user stay.
    path.write_text(path.read_text() + "# mine\n")
    recommend(images, *options)
    assert path.read_text().endswith("# mine\n")
    planned = ddl("study", "submit", path, "--data", images, "--site", "localtest", "--dry-run")
    assert planned.exit_code == 0, planned.output


def test_one_rank_becomes_one_rank_a_node() -> None:
    for base in ({}, {"strategy": "single"}, {"strategy": "fsdp", "nodes": 1}):
        training = Study(name="train", question="?", base=base, repeats=1)
        strategies = {one.strategy for one in nodes_study(training, "train_nodes").expand()}
        assert strategies == {"fsdp" if "nodes" in base else "ddp"}


def test_a_job_without_an_answer_is_an_error_once(
    images: Path, sbatch: Path, stand_ins: StandIns
) -> None:
    recommend(images)
    name = state()["name"]
    (results().root / "recommend" / f"{name}.log").write_text(
        "Error: cannot train; try --batch 4\n"
    )
    stand_ins.add("sacct", f"1|ddl-{name}|FAILED|1:0\n")
    asked = len(stand_ins.calls("squeue"))
    assert "queue was not read; job 1, submitted" in said(recommend(images, "--dry-run"))
    assert len(stand_ins.calls("squeue")) == asked
    assert stand_ins.calls("sacct") == []
    refused = recommend(images, status=1)
    assert "job 1 ended as FAILED (1) without an answer" in said(refused)
    assert "Error: cannot train; try --batch 4" in said(refused)
    assert "submitted: job 2" in recommend(images).output


def test_a_job_that_left_no_log_names_it(images: Path, sbatch: Path, stand_ins: StandIns) -> None:
    recommend(images)
    refused = recommend(images, status=1)
    assert "job 1 left the queue without an answer" in said(refused)
    assert "can the node of the job write there?" in said(refused)


def test_no_search_is_submitted_twice(images: Path, sbatch: Path, stand_ins: StandIns) -> None:
    recommend(images)
    queue(stand_ins, "PENDING")
    found = state()
    for path in (results().root / "recommend").glob("*.job.json"):
        path.unlink()
    assert "job 1, submitted" in recommend(images).output
    assert state()["job_id"] == found["job_id"]
    assert len(sbatch.read_text().splitlines()) == 1
    # The same number, of another cluster's job.
    stand_ins.add("squeue", "1|other|RUNNING|None\n")
    assert "left the queue" in said(recommend(images, status=1))


def test_without_slurm_the_answer_is_shown_and_no_job_given_up(
    images: Path, sbatch: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommend(images)
    monkeypatch.setenv("PATH", str(stand_ins.folder / "nothing"))
    assert "there is no squeue here" in said(recommend(images, status=1))
    answer()
    assert recommend(images).output.startswith(LINES)


def test_a_damaged_state_is_named(images: Path, sbatch: Path) -> None:
    recommend(images)
    (path,) = (results().root / "recommend").glob("*.job.json")
    path.write_text("{}")
    refused = said(recommend(images, status=1))
    assert "is not the state of a search" in refused
    assert "remove it" in refused


def test_each_site_and_each_option_has_a_search_of_its_own(images: Path, tmp_path: Path) -> None:
    """Also copies of a site's file, which have its description and may have its name."""
    copies = [tmp_path / "copy.toml", tmp_path / "localtest.toml", tmp_path / "x/localtest.toml"]
    copies[-1].parent.mkdir()
    for copy in copies:
        copy.write_bytes((SITES / "localtest.toml").read_bytes())
    sites = ("localtest", str(SITES / "localtest.toml"), *map(str, copies))
    named, path, *others = (search(site, images).name for site in sites)
    assert named == path == search("localtest", images, account="a").name
    others += [search("localtest", images, "--batch=4").name]
    others += [search("localtest", images, partition="p").name]
    assert len({named, *others}) == 1 + len(copies) + 2


def test_a_folder_that_a_script_cannot_name_is_refused(tmp_path: Path) -> None:
    tree = type(results())(tmp_path / "a\nb")
    site = SiteSearch(Request("resnet8", tmp_path), (), tree, "localtest", JobPlan())
    with pytest.raises(SpecError, match="rename that folder"):
        site.script()
