"""The variables under which `make test` repeats the numeric tests really change the arithmetic."""

import os
import platform

import pytest
import torch
from torch.backends import mkldnn

from tests.planted import tiny

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="ATen and oneDNN know these names on x86_64 only"
)

# By the value of ONEDNN_MAX_CPU_ISA, what no kernel may then be.
EXCLUDED = {"AVX2": "avx512", "SSE41": "avx"}


@pytest.mark.numeric
def test_the_instruction_set_asked_for_is_the_one_in_use(capfd):
    asked = os.environ.get("ATEN_CPU_CAPABILITY")
    has = {"avx512": torch.cpu._is_avx512_supported(), "avx2": torch.cpu._is_avx2_supported()}
    if asked is None:
        best = next((name for name in has if has[name]), "default")
        assert torch.backends.cpu.get_cpu_capability() == best.upper()
    elif has.get(asked, True):
        assert torch.backends.cpu.get_cpu_capability() == asked.upper()

    with mkldnn.verbose(mkldnn.VERBOSE_ON):
        tiny(4)(torch.randn(4, 3, 16, 16)).sum().backward()
    kernels = capfd.readouterr().out
    assert "convolution" in kernels
    most = os.environ.get("ONEDNN_MAX_CPU_ISA")
    if most in EXCLUDED:
        assert EXCLUDED[most] not in kernels
    elif has["avx512"]:
        assert "avx512" in kernels
