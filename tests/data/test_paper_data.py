"""The paper's numbers are consistent with themselves, with the guide and with arithmetic."""

import ast
import csv
import operator
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STRATEGIES = {"ddp", "horovod", "deepspeed"}
LOADERS = {"native", "dali", "dali_cpu", "dali_gpu"}
MODELS = {"resnet50", "resnet101", "resnet152"}
SCHEDULES = {"step", "cosine", "exponential"}
BOUNDS = {"value", "lower", "upper"}
UNITS = {
    "parallel_efficiency": "1",
    "speedup": "1",
    "runtime": "s",
    "io_time": "s",
    "top1": "percent",
    "throughput": "images/s",
}
TRAIN_IMAGES = 1281167
EPOCHS = 90

STATED = ["efficiency", "runtime", "accuracy"]
PAPER = [*STATED, "profile", "claims", "settings", "quoted", "derived"]

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def paper(name: str) -> list[dict[str, str]]:
    with (ROOT / "data" / "paper" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(statement: str) -> float:
    """Return the one value that all rows of a statement share."""
    rows = [row for name in STATED for row in paper(name) if row["statement"] == statement]
    (value,) = {float(row["value"]) for row in rows}
    return value


def calculate(formula: str) -> float:
    """Evaluate plain arithmetic; anything else in the formula is an error."""

    def visit(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](visit(node.left), visit(node.right)))
        assert isinstance(node, ast.Constant), f"not arithmetic: {formula}"
        return float(node.value)  # type: ignore[arg-type]

    return visit(ast.parse(formula, mode="eval").body)


@pytest.mark.parametrize("name", STATED)
def test_stated_rows_use_the_allowed_names(name: str) -> None:
    for row in paper(name):
        assert row["model"] in MODELS
        assert row["bound"] in BOUNDS
        assert row["approx"] in {"true", "false"}
        assert row["unit"] == UNITS[row["quantity"]]
        assert row["place"]
        assert row["printed"]
        assert int(row["global_batch_size"]) == 64 * int(row["world_size"])
        assert set(filter(None, row["inferred"].split(";"))) <= set(row)
        if name == "accuracy":
            assert row["schedule"] in SCHEDULES
        else:
            assert row["strategy"] in STRATEGIES
            assert row["loader"] in LOADERS
            assert 4 <= int(row["world_size_min"]) <= int(row["world_size"]) <= 1024


@pytest.mark.parametrize("name", STATED)
def test_a_bound_is_what_is_printed(name: str) -> None:
    signs = {">": "lower", "<": "upper"}
    for row in paper(name):
        assert row["bound"] == signs.get(row["printed"][0], "value")
        assert row["approx"] == ("true" if row["printed"].startswith("≈") else "false")


def test_printed_and_value_agree() -> None:
    scale = {"h": 3600.0}
    for name in STATED:
        for row in paper(name):
            match = re.fullmatch(r"[<>≈]?([\d.]+) ?(h|s|%|times)?", row["printed"])
            assert match, row["printed"]
            expected = float(match[1]) * scale.get(match[2], 1.0)
            assert float(row["value"]) == pytest.approx(expected)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_table_2_is_whole(model: str) -> None:
    sizes = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    for loader, expected in [("dali", sizes), ("native", sizes[:-1])]:
        rows = [r for r in paper("profile") if (r["model"], r["loader"]) == (model, loader)]
        assert [int(row["world_size"]) for row in rows] == expected
        for row in rows:
            shares = [float(row[f"{k}_percent"]) for k in ("allreduce", "io", "cudnn")]
            assert all(0 < share < 100 for share in shares)
            assert sum(shares) < 100
            assert row["strategy"] == "ddp"
            assert int(row["profiled_epochs"]) == (5 if row["world_size"] == "4" else 10)


def test_the_stated_speedups_come_from_the_rounded_runtimes() -> None:
    assert number("R03") / number("R04") == number("R05") == 234
    assert number("R06") / number("R07") == number("R08") == 204
    assert 4 * number("R05") / 1024 == pytest.approx(0.9140625)
    assert number("E02") == 0.76  # what the text says instead


def test_derived_values_follow_from_their_formulas() -> None:
    for row in paper("derived"):
        assert float(row["value"]) == pytest.approx(calculate(row["formula"]), rel=1e-5)
        assert row["bound"] in BOUNDS
        assert UNITS.get(row["quantity"], row["unit"]) == row["unit"]
        assert row["strategy"] in STRATEGIES | {""}
        assert row["loader"] in LOADERS | {""}


def test_claims_compare_two_values_of_one_factor() -> None:
    factors = {
        "strategy": STRATEGIES,
        "loader": LOADERS,
        "model": MODELS,
        "schedule": SCHEDULES,
    }
    own = [row for row in paper("claims") if row["paper"] == "aach2023"]
    for row in (row for row in own if row["compared"]):
        assert row["left"] != row["right"]
        assert row["relation"] in {"greater", "similar"}
        assert row["strength"] in {"", "slight", "clear"}
        if row["compared"] in factors:
            assert {row["left"], row["right"]} <= factors[row["compared"]]
            assert not row.get(row["compared"]), "the compared factor cannot be fixed as well"
        else:
            assert row["compared"] in {"world_size", "global_batch_size"}
            assert int(row["left"]) > 0
            assert int(row["right"]) > 0
        for column in ["strategy", "loader", "model"]:
            assert row[column] in factors[column] | {""}


def test_settings_are_unique_and_the_unstated_ones_have_no_value() -> None:
    rows = paper("settings")
    keys = [(row["name"], row["model"]) for row in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        assert (row["stated"] == "true") == bool(row["value"]) == bool(row["place"])
    value = {row["name"]: row["value"] for row in rows if not row["model"]}
    assert int(value["nodes"]) * int(value["gpus_per_node"]) == int(value["gpus_total"])
    assert (int(value["train_images"]), int(value["epochs"])) == (TRAIN_IMAGES, EPOCHS)
    assert {"precision", "momentum", "weight_decay", "nccl"} <= {
        row["name"] for row in rows if row["stated"] == "false"
    }
