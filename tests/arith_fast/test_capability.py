"""numerics.md section 6: what this CPU computes exactly, and the flags that it needs."""

import subprocess
import sys

import pytest
import torch

from qtune.arith_fast.capability import INT8_SWITCH, guard, int8_exact, provenance
from qtune.arith_fast.native import engine


def test_the_switch_turns_int8_kernels_off(monkeypatch):
    monkeypatch.setenv(INT8_SWITCH, "off")
    assert int8_exact() is False
    assert provenance()["integer_kernels"] == "float32"


def test_the_switch_turns_compiled_kernels_off(monkeypatch):
    monkeypatch.setenv(engine.SWITCH, "off")
    assert not engine.available()
    assert provenance()["compiled_kernels"] == "off"


def test_importing_the_package_does_not_import_the_compiler():
    code = "import sys, qtune, qtune.arith_fast.gemm; sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_provenance_names_what_decides_the_bits():
    assert set(provenance()) == {
        "torch",
        "cpu_capability",
        "onednn_max_cpu_isa",
        "integer_kernels",
        "compiled_kernels",
        "threads",
    }


def test_guard_pins_and_restores_the_flags():
    before = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), _precision())
    with torch.autocast("cpu", dtype=torch.bfloat16), guard():
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
        assert _precision() in ("ieee", None)
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), _precision()) == before


def test_guard_restores_after_an_error():
    before = _precision()
    with pytest.raises(ZeroDivisionError), guard():
        raise ZeroDivisionError
    assert _precision() == before
    assert torch.is_grad_enabled()


def _precision():
    return getattr(torch.backends.mkldnn, "fp32_precision", None)
