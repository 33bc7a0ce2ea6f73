"""What may be asked of an emulated run, and what of no other."""

import re

import pytest

from ddl_core.config import RunSpec, run_fields
from ddl_core.errors import SpecError
from tests.fields import EMULATED, is_of_emulation

EMULATION_FIELDS = [name for name in run_fields() if is_of_emulation(name)]


@pytest.mark.parametrize("field", EMULATION_FIELDS)
def test_a_field_of_emulation_is_refused_elsewhere(field: str) -> None:
    beyond = run_fields()[field].default + 1
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
        ("prefix", "env"),
    ],
)
def test_what_cannot_be_emulated_is_refused(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=rf"{field} = {re.escape(repr(value))}, but emulated"):
        RunSpec.parse({**EMULATED, "epochs": 3, field: value})


ZERO = {"strategy": "deepspeed", "deepspeed_zero_stage": 1}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "resnet50"}, "'resnet50', but emulated = true.*choose model paced_resnet50"),
        ({"emulated": False}, "model = 'paced_resnet50', but emulated = false"),
        ({"strategy": "single", "framework": "keras"}, "'paced_resnet50' is not one of .*'keras'"),
        ({"emu_uplink_mbit": 10}, "emu_uplink_mbit = 10.*nodes = 1; use 2 at least, or 0"),
        ({**ZERO, "deepspeed_zero_stage": 2}, "deepspeed_zero_stage = 2.*use stage 0 or 1"),
        ({**ZERO, "deepspeed_zero_stage": 3}, "deepspeed_zero_stage = 3.*use stage 0 or 1"),
        ({"strategy": "fsdp"}, "strategy = 'fsdp'.*never checked"),
        ({"ddp_compression": "powersgd"}, "'powersgd'.*never checked; use 'fp16' or 'none'"),
    ],
)
def test_what_does_not_fit_an_emulated_run_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        RunSpec.parse({**EMULATED, **fields})


@pytest.mark.parametrize("fields", [{"nodes": 2, "emu_uplink_mbit": 10}, ZERO])
def test_what_fits_an_emulated_run_is_accepted(fields: dict) -> None:
    assert RunSpec.parse({**EMULATED, **fields}).emulated
