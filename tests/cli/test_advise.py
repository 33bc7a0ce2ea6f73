from pathlib import Path

import pytest

from tests.launch.running import ddl


def test_the_answer_comes_first_and_the_table_after() -> None:
    result = ddl("advise", "--site", "juwels_booster", "--deadline", 1, "--accuracy", 75, status=0)
    lines = result.output.splitlines()
    assert lines[0].startswith("ResNet50 on ImageNet, 90 epochs of 1,281,167 images, on juwels")
    assert lines[2] == "meets all limits"
    assert "PyTorch-DDP, DALI (CPU), 64 ranks on 16 nodes" in lines[3]
    assert sum(line.startswith(">") for line in lines) == 2  # one row, and the key


def test_a_figure_is_drawn_where_it_is_wanted(tmp_path: Path) -> None:
    where = tmp_path / "options"
    ddl("advise", "--site", "juwels_booster", "--node-hours", 50, "--figure", where, status=0)
    kinds = ["csv", "pdf", "png", "svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"options.{kind}" for kind in kinds]


def test_without_a_known_accuracy_the_options_are_written_alone(tmp_path: Path) -> None:
    where = ["--model", "resnet152", "--epochs", 30, "--figure", tmp_path / "options"]
    ddl("advise", "--site", "juwels_booster", "--node-hours", 50, *where, status=0)
    assert [path.name for path in tmp_path.iterdir()] == ["options.csv"]


def test_a_number_of_gpus_needs_no_limit() -> None:
    result = ddl("advise", "--site", "juwels_booster", "--gpus", 64, status=0)
    rows = [line for line in result.output.splitlines() if " node-hours" in line]
    assert "64 ranks" in result.output
    assert rows, "time and cost"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--site", "juwels_booster", "--gpus", 8192], "no option on 8192 ranks"),
        (["--site", "nowhere", "--deadline", 1], "unknown site 'nowhere'"),
        (["--site", "lumi", "--deadline", 1], "no measurement of resnet50 on imagenet on lumi"),
        (["--site", "juwels_booster", "--deadline", 0.001], "deadline=0.0"),
        (["--site", "juwels_booster"], "--node-hours"),
        (["--deadline", 1, "--model", "alexnet"], "no measurement of alexnet"),
    ],
)
def test_what_cannot_be_answered_ends_with_status_1(words: list[object], told: str) -> None:
    result = ddl("advise", *words, status=1)
    assert told in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["--deadline", -1],
        ["--images", 0],
        ["--accuracy", 101],
        ["--accuracy", "nan"],
        ["--model", "vgg"],
    ],
)
def test_absurd_values_are_refused_by_name(words: list[object]) -> None:
    result = ddl("advise", "--site", "juwels_booster", *words, status=2)
    assert str(words[0]) in result.output


def test_a_fraction_is_no_accuracy_in_percent() -> None:
    result = ddl("advise", "--site", "juwels_booster", "--accuracy", 0.75, status=2)
    assert "0.75" in result.output
    assert "percent" in result.output
