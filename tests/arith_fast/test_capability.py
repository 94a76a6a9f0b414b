"""numerics.md section 7: what this CPU computes exactly, in subprocesses per instruction set."""

import json
import os
import subprocess
import sys

import pytest
import torch

from qtune.arith_fast.capability import INT8_SWITCH, guard, int8_exact, provenance

CHECK = """
import json
import numpy as np
import torch
from qtune.arith_fast.capability import int8_exact
from qtune.arith_fast.gemm import conv2d_kernel, linear_kernel
from qtune.arith_fast.held import from_held, to_held
from qtune.dtype import qint8, qint16
from tests.arith_fast.oracle import conv_sum, finish

torch.set_num_threads(1)
rng = np.random.default_rng(0)
cases = [(32, 16, 3, 1, 1), (3, 16, 3, 2, 1), (16, 16, 3, 1, 16), (64, 24, 1, 1, 1)]
cases.append((8, 8, 3, 1, 2))
wrong = []
for source in (qint8, qint16):
    for inputs, outputs, size, stride, groups in cases:
        for extreme in (True, False):
            w = np.full((outputs, inputs // groups, size, size), 127)
            x = np.full((2, inputs, 9, 9), source.qmax)
            if not extreme:
                w = rng.integers(-128, 128, size=w.shape)
                x = rng.integers(source.qmin, source.qmax + 1, size=x.shape)
            pad = (size // 2,) * 4
            acc = conv_sum(x, w, (stride, stride), pad, (1, 1), groups)
            bias = rng.integers(-1000, 1000, size=outputs)
            m, n = rng.integers(2**14, 2**15, size=outputs), source.bits + 16
            kernel = conv2d_kernel(
                w, bias, m, n, (stride, stride), pad, groups=groups, in_dtype=source
            )
            expected = finish(acc, bias, m, [n] * outputs, -128, 127)
            if not np.array_equal(from_held(kernel(to_held(x, source))), expected):
                wrong.append([str(source), inputs, outputs, size, stride, groups, extreme])
x, w = np.full((3, 1200), -128), np.full((5, 1200), 127)
if not np.array_equal(
    from_held(linear_kernel(w, 0, None, None, out_dtype="int32")(to_held(x, qint8))), x @ w.T
):
    wrong.append(["linear"])
print(json.dumps({"int8": int8_exact(), "wrong": wrong}))
"""


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "AVX2_VNNI", "DEFAULT"])
def test_sums_are_exact_under_every_instruction_set(isa, request):
    """Pairs of byte products saturate at 16 bits without VNNI: those kernels must not be used."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    environment.pop(INT8_SWITCH, None)
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=environment,
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == []
    if isa in ("AVX2", "AVX512_CORE"):
        assert result["int8"] is False


def test_the_switch_turns_int8_kernels_off(monkeypatch):
    monkeypatch.setenv(INT8_SWITCH, "off")
    assert int8_exact() is False
    assert provenance()["integer_kernels"] == "float32"


def test_provenance_names_what_decides_the_bits():
    assert set(provenance()) == {
        "torch",
        "cpu_capability",
        "onednn_max_cpu_isa",
        "integer_kernels",
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
