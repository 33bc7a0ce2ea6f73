"""What may be asked of an emulated run, and what of no other."""

import re

import pytest

from ddl_core.config import RunSpec
from ddl_core.errors import SpecError
from tests.fields import EMULATED, is_of_emulation

EMULATION_FIELDS = [name for name in RunSpec.model_fields if is_of_emulation(name)]


@pytest.mark.parametrize("field", EMULATION_FIELDS)
def test_a_field_of_emulation_is_refused_elsewhere(field: str) -> None:
    beyond = RunSpec.model_fields[field].default + 1
    value = 0.5 if field == "emu_jitter" else beyond
    with pytest.raises(SpecError, match=rf"{field} = {value}.* is of emulated = true alone"):
        RunSpec.parse({field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loader", "native"),
        ("device", "auto"),
        ("eval_every", 1),
        ("compile", True),
        ("accumulation", 4),
        ("precision", "bf16"),
        ("profile_steps", 2),
        ("nsys", True),
    ],
)
def test_what_cannot_be_emulated_is_refused(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=rf"{field} = {re.escape(repr(value))}, but emulated"):
        RunSpec.parse({**EMULATED, "epochs": 3, field: value})


def test_a_paced_model_and_an_emulated_run_need_one_another() -> None:
    text = r"model = 'resnet50', but emulated = true.*choose model paced_resnet50"
    with pytest.raises(SpecError, match=text):
        RunSpec.parse({**EMULATED, "model": "resnet50"})
    with pytest.raises(SpecError, match="model = 'paced_resnet50', but emulated = false"):
        RunSpec.parse({**EMULATED, "emulated": False})
    with pytest.raises(SpecError, match="model 'paced_resnet50' is not one of framework 'keras'"):
        RunSpec.parse({**EMULATED, "strategy": "single", "framework": "keras"})


def test_an_uplink_needs_two_halves() -> None:
    assert RunSpec.parse({**EMULATED, "nodes": 2, "emu_uplink_mbit": 10}).emulated
    with pytest.raises(SpecError, match=r"emu_uplink_mbit = 10.*nodes = 1; use 2 at least, or 0"):
        RunSpec.parse({**EMULATED, "emu_uplink_mbit": 10})


def test_a_stage_whose_bytes_nobody_checked_is_refused() -> None:
    asked = {**EMULATED, "strategy": "deepspeed", "deepspeed_zero_stage": 1}
    assert RunSpec.parse(asked).emulated
    for stage in (2, 3):
        with pytest.raises(SpecError, match=rf"deepspeed_zero_stage = {stage}.*use stage 0 or 1"):
            RunSpec.parse({**asked, "deepspeed_zero_stage": stage})
    with pytest.raises(SpecError, match=r"strategy = 'fsdp'.*never checked"):
        RunSpec.parse({**EMULATED, "strategy": "fsdp"})
    with pytest.raises(SpecError, match=r"'powersgd'.*never checked; use 'fp16' or 'none'"):
        RunSpec.parse({**EMULATED, "strategy": "ddp", "ddp_compression": "powersgd"})
