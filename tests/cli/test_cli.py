import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddl_core.config import STUDY_ONLY, run_fields
from ddl_core.errors import STOPPED, LaunchError
from ddl_core.registry import STRATEGIES
from ddl_tools.cli import main, study
from ddl_tools.launch import study as running
from ddl_tools.records.ledger import ledger
from ddl_tools.records.paths import RunFiles, Tree, results
from ddl_tools.records.run import RunRecord, read_record
from ddl_tools.records.stored import run_dirs
from ddl_tools.study import Study
from tests.analysis.drawn import draw_only
from tests.cli.bad_inputs import commands
from tests.launch.running import ddl, finish, study_file
from tests.pictures import write_pictures

HEAVY = ("torch", "pandas", "papermill", "matplotlib", "scipy", "IPython", "jupyter_client")


@pytest.mark.parametrize("command", [(), *sorted({*commands(), *(c[:1] for c in commands())})])
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = ddl(*command, "--help", status=0)
    assert "Usage: " in result.output


def test_starting_the_command_line_imports_nothing_slow() -> None:
    code = f"import sys, ddl_tools.cli; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ctrl_c_while_modules_are_imported_shows_no_traceback() -> None:
    code = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "ddl_tools.cli.study":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
import ddl_tools.cli
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (STOPPED, "")


def test_a_run_has_an_option_for_every_field_but_those_of_studies() -> None:
    text = re.sub(r"\s+", " ", ddl("run", "--help").output)
    for name, field in run_fields().items():
        option = f"--{name.replace('_', '-')}"
        if name in STUDY_ONLY:
            assert option not in text
            asked = ddl("run", option, status=2)
            assert f"{name} is set by a study file alone" in asked.output
            continue
        assert option in text
        assert field.description is not None
        assert field.description[1:] in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --gpus-per-node 2", "strategy = 'single' with world_size = 2"),
        ("run --strategy ddp --gpus-per-node 4096 --device cpu", "4096"),
        ("run --nodes 2 --strategy ddp", "nodes = 2"),
        ("run --model magic", "timm/NAME, package.module:function"),
        ("run --train-images 10", "larger than train_images = 10"),
        ("run --train-images 64 --epochs 2 --profile-steps 5", "an epoch has 1 step,"),
        ("run --model ddl_core.models:resnt8", "has no 'resnt8'"),
        ("run --device cpu --data nowhere", "nowhere does not exist"),
        ("study run nothing", "unknown study 'nothing'; choose one of: "),
        ("study run nothing.yaml", "cannot read the study nothing.yaml"),
        ("study publish nothing", "no runs of study 'nothing'"),
        ("study export nothing crate", "'nothing' is not published in "),
        ("study verify nothing", "run `ddl study run nothing` first"),
        ("figures --results nowhere", "there is no folder of results"),
        ("advise --site juwels_booster --gpus 4 --results nowhere", "there is no folder of res"),
    ],
)
def test_bad_input_ends_with_1_and_one_message(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.preflight, "MIN_FREE_BYTES", 0)
    result = ddl(*arguments.split(), status=1)
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not results().runs.exists()


def test_a_run_whose_epochs_do_not_count_says_so_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")  # without it, a run is refused first
    write_pictures(tmp_path / "images", 16, 4)
    monkeypatch.setattr(running.preflight, "MIN_FREE_BYTES", 0)

    def start(*_: object) -> None:
        raise LaunchError("here it starts")

    monkeypatch.setattr(running, "run_one", start)
    words = ["run", "--device", "cpu", "--local-batch-size", "2", "--classes", "4", "--epochs", "2"]
    told = ddl(*words, "--data", tmp_path / "images", status=1).output
    said, _, _ = told.partition("here it starts")
    assert all(words in said for words in ("no throughput", "--epochs", "--discard-steps"))
    counted = ddl(*words, "--data", tmp_path / "images", "--discard-steps", 1, status=1).output
    assert "here it starts" in counted
    assert "no throughput" not in counted


def test_a_dry_run_shows_the_command_and_writes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")  # a dry run refuses what the run would refuse
    shown = ddl("run", "--dry-run", "--strategy", "ddp", "--gpus-per-node", 2, status=0)
    assert f"2 x {shlex.quote(sys.executable)} -m ddl_tools.rank.worker" in shown.output
    path = study_file(tmp_path, classes=[5, 7])
    for command in ("run", "resume"):
        shown = ddl("study", command, path, "--dry-run", status=0)
        assert "2 runs: 2 missing" in shown.output
        assert shown.output.count("-m ddl_tools.rank.worker") == 2
    ddl("study", "plan", path, "--dry-run", status=0)
    assert not results().root.exists()


def test_a_plan_is_written_and_shown(tmp_path: Path) -> None:
    path = study_file(tmp_path, classes=[5, 7])
    assert "2 runs: 2 planned" in ddl("study", "plan", path).output
    status = ddl("study", "status", path, status=0)
    assert status.output.count("planned     single-synthetic-resnet8") == 2


def following(result: Result) -> list[str]:
    """Return the commands that a command names as the next ones."""
    (line,) = re.findall(r"^next: (.*)$", result.stdout, re.M)
    return line.split("; ")


def test_each_step_of_a_study_names_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.preflight, "MIN_FREE_BYTES", 0)
    photos = write_pictures(tmp_path / "my photos", 16, 8)
    data, path = ("--data", photos), study_file(tmp_path, loader="native", train_images=None)
    site = ("--site", "juwels_booster")
    planned = ddl("study", "plan", path, *data, *site, status=0)
    assert following(planned) == [f"ddl study submit {path} {site[0]} {site[1]} --data '{photos}'"]
    there = tmp_path / "there"
    planned = ddl("study", "plan", path, *data, "--results", there, status=0)
    assert following(planned) == [f"ddl study run {path} --data '{photos}' --results {there}"]
    (item,) = ledger(Study.load(path), Tree(there))
    finish(item.directory, status="failed")
    planned = ddl("study", "plan", path, *data, "--results", there, status=0)
    assert following(planned) == [f"ddl study resume {path} --data '{photos}' --results {there}"]
    (item,) = ledger(Study.load(path), results())
    finish(item.directory)
    assert following(ddl("study", "plan", path, status=0)) == [f"ddl study compare {path}"]
    ended = following(ddl("study", "run", path, status=0))
    figures = f"ddl figures --study small --results {results().root}"
    assert ended == [f"ddl study compare {path}", figures]


def test_a_plan_that_cannot_start_names_the_remedy_alone(tmp_path: Path) -> None:
    path = study_file(tmp_path, loader="native", train_images=None)
    result = ddl("study", "plan", path, "--data", tmp_path / "nowhere", status=0)
    assert "ddl data sample" in result.stderr
    assert "next: " not in result.stdout


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_plan_of_which_no_epoch_counts_says_so(interleaved: bool, tmp_path: Path) -> None:
    """An epoch has 2 steps and 3 are discarded: of 3 epochs one is left, or is the first round."""
    photos = write_pictures(tmp_path / "photos", 16, 8)
    fields = {"loader": "native", "train_images": None, "discard_steps": 3, "epochs": 3}
    path = study_file(tmp_path, loader_workers=[0, 1], **fields)
    if interleaved:
        path.write_text(path.read_text() + "interleave: {reference: {loader_workers: 0}}\n")
    result = ddl("study", "plan", path, "--dry-run", "--data", photos, status=0)
    text = "nothing to compare: no throughput: in 2 of 2 runs"
    assert (text in result.output) == interleaved


def test_a_plan_says_what_the_data_folder_lacks(tmp_path: Path) -> None:
    """In the words of `ddl study submit`; completed runs read nothing more."""
    path = study_file(tmp_path, loader="native", train_images=None, device="cuda")
    nowhere = tmp_path / "nowhere"
    result = ddl("study", "plan", path, "--dry-run", "--data", nowhere, status=0)
    assert f"the data folder {nowhere} does not exist; make a sample set" in result.stderr
    assert "training images is not known in 1 of 1 run" in result.output
    site = ("--site", "juwels_booster", "--account", "p")
    submitted = ddl("study", "submit", path, *site, "--dry-run", "--data", nowhere, status=0)
    (line,) = [one for one in result.stderr.splitlines() if "data folder" in one]
    assert line.partition(": the ")[2] in submitted.stderr
    photos = write_pictures(tmp_path / "photos", 16, 8)
    result = ddl("study", "plan", path, "--data", photos, status=0)
    assert result.stderr == ""
    assert "not known in" not in result.output
    assert "short windows: in 1 of 1 run" in result.output  # by the images of the folder
    (item,) = ledger(Study.load(path), results())
    finish(item.directory)
    result = ddl("study", "plan", path, "--dry-run", "--data", nowhere, status=0)
    assert "does not exist" not in result.stderr
    assert "not known in" not in result.output


def test_results_go_where_they_are_sent(tmp_path: Path) -> None:
    ddl("study", "plan", study_file(tmp_path), "--results", tmp_path / "there")
    assert len(run_dirs("small", Tree(tmp_path / "there"))) == 1
    assert not results().root.exists()


def test_watching_reads_a_run_again_only_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study_file(tmp_path, repeats=3)
    ddl("study", "plan", path)
    items = ledger(Study.load(path), results())
    finish(items[0].directory)
    read, turns = [], iter(range(4))

    def note(directory: Path) -> RunRecord:
        read.append(directory)
        return read_record(directory)

    def turn(seconds: float) -> None:
        looks.append(len(read))
        if next(turns) == 2:
            for item in items[1:]:
                finish(item.directory)

    looks: list[int] = []
    monkeypatch.setattr("ddl_tools.records.ledger.read_record", note)
    monkeypatch.setattr(study.time, "sleep", turn)
    result = ddl("study", "status", path, "--watch", status=0)
    assert "3 runs: 3 completed" in result.output
    assert looks == [3, 3, 3]
    assert len(read) == 5


def test_a_dry_run_shows_the_others_where_a_framework_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = replace(STRATEGIES["horovod"], packages=("no-such-package",))
    monkeypatch.setitem(STRATEGIES, "horovod", missing)
    path = study_file(tmp_path, strategy=["ddp", "horovod"], gpus_per_node=2)
    shown = ddl("study", "run", path, "--dry-run", status=0)
    assert "-m ddl_tools.rank.worker" in shown.output
    assert "no-such-package" in shown.output
    ddl("run", "--dry-run", "--strategy", "horovod", "--gpus-per-node", 2, status=0)


def completed_study(tmp_path: Path, **weights: str) -> Path:
    """Plan a study of one run per strategy, with these letters for the hashes of its weights."""
    path = study_file(tmp_path, strategy=list(weights), gpus_per_node=2)
    ddl("study", "plan", path)
    for item in ledger(Study.load(path), results()):
        digest = weights[item.spec.strategy] * 64
        finish(item.directory, weights_sha256=digest, system={"device": "cpu"})
    return path


@pytest.mark.parametrize(
    ("horovod", "command", "status"),
    [("a", "run", 0), ("a", "status", 0), ("b", "run", 1), ("b", "status", 0)],
)
def test_a_study_ends_with_whether_the_frameworks_agree(
    horovod: str, command: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.preflight, "MIN_FREE_BYTES", 0)
    path = completed_study(tmp_path, ddp="a", horovod=horovod)
    result = CliRunner().invoke(main, ["study", command, str(path)], color=True)
    same = horovod == "a"
    assert result.exit_code == status
    end = f"\nsame weights under all strategies: {same:d} of 1 group\n"
    assert result.stdout.partition("next: ")[0].endswith(end)
    for text in ("\x1b[31m", "DIFFERENT WEIGHTS in 1 of 1 group", "bbbbbbbb  horovod-"):
        assert (text in result.stderr) != same


def test_publishing_goes_to_the_committed_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "committed", lambda: Tree(tmp_path / "data"))
    path = study_file(tmp_path, classes=[5, 7])
    ddl("study", "plan", path)
    first, second = ledger(Study.load(path), results())
    finish(first.directory, provenance={"git_dirty": True})
    result = ddl("study", "publish", "small", status=0)
    assert result.stdout == (
        "1 published, 0 published before\nnext: ddl figures; git add data figures docs README.md\n"
    )
    assert "uncommitted changes" in result.stderr
    assert f"not published: {second.spec.run_id} (planned)" in result.stderr
    (published,) = run_dirs("small", Tree(tmp_path / "data"))
    assert published.name == first.spec.run_id


def test_converting_there_and_back(tmp_path: Path) -> None:
    images = results().dataset("sample")
    sample = ddl("data", "sample", "--classes", 1, "--train-per-class", 2, status=0)
    assert following(sample) == ["ddl recommend --model resnet18"]
    folder = images / "tfrecord"
    dry = ddl("data", "convert", "--dry-run", "--train-shards", 2)
    assert "next: " not in dry.stdout
    assert "train: 2 images in 2 shards" in dry.stdout
    assert not folder.exists()
    done = ddl("data", "convert", "--train-shards", 2, "--processes", 1, status=0)
    assert following(done) == [f"ddl data verify {folder}"]
    assert len(list(folder.glob("train-*-of-00002"))) == 2
    assert "0 indices made, 3 were there" in ddl("data", "index", folder).stdout
    verified = ddl("data", "verify", folder, "--processes", 1)
    assert "\nok\n" in verified.stdout
    assert following(verified) == [f"ddl recommend --model resnet18 --data {folder}"]


def test_own_figures_go_beside_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "efficiency")
    (tmp_path / "runs").mkdir()
    result = ddl("figures", "--results", tmp_path, status=0)
    figures = tmp_path / "figures"
    drawn = [path for path in (figures / "paper").iterdir() if path.name != "README.md"]
    assert {path.suffix for path in drawn} == {".svg", ".pdf", ".png", ".csv"}
    assert f"{len(drawn)} files in {figures}" in result.output
    assert f"answers and figures: {figures / 'README.md'}" in result.output
    assert set(figures.iterdir()) == {figures / "paper", figures / "README.md"}


def test_a_damaged_record_is_named_by_all_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_only(monkeypatch, "comparison", "loader_bound", "efficiency")
    path = study_file(tmp_path, classes=[5, 7], epochs=2)
    ddl("study", "plan", path)
    broken, other = ledger(Study.load(path), results())
    for item in (broken, other):
        finish(item.directory, system={"device": "cpu"})
    verified = ddl("study", "verify", path, status=0)
    assert verified.stdout == "2 records of small: 2 whole, 0 damaged\n"
    RunFiles(broken.directory).epochs.unlink()
    told = f"{broken.directory}/epochs.jsonl: is missing, but the run is completed"
    verified = ddl("study", "verify", "small", status=1)
    assert verified.stdout.startswith(told)
    assert verified.stdout.endswith("\n2 records of small: 1 whole, 1 damaged\n")
    status = ddl("study", "status", path, status=0)
    assert "2 runs: 1 completed, 1 damaged" in status.stdout
    told = f"damaged     {broken.spec.run_id} (classes 5)  epochs.jsonl: is missing"
    assert told in status.stdout
    ended = ddl("study", "run", path, status=1)  # has nothing to run
    assert "2 runs: 1 completed, 1 damaged" in ended.stdout
    drawn = ddl("figures", "--study", "small", "--results", results().root, status=1)
    assert "small (2 runs: 1 completed, 1 damaged): " in drawn.stdout
    assert f"1 record in no figure:\n{broken.directory}: epochs.jsonl: is miss" in drawn.stderr
    others = [line for line in drawn.stdout.splitlines() if "nothing to show" in line]
    assert len(others) == 1
    assert "--why" in others[0]
    why = ddl("figures", "--study", "small", "--why", "--results", results().root, status=1)
    told = re.findall("nothing to show in small/.*: needs", why.stdout)
    assert others[0].startswith(f"nothing to show in {len(told)} other figures")
    table = (results().figures / "small" / "comparison.csv").read_text()
    assert len(table.splitlines()) == 2, "the head, and the configuration of the other run"
