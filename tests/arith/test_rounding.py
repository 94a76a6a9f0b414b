"""numerics.md section 1: rounding half up."""

import subprocess
import sys

import numpy as np

from qtune.arith.rounding import round_half_up, saturate
from qtune.dtype import qint4, qint8, qint16


def test_ties_round_upwards():
    """A21: one rule for every sign."""
    ties = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    assert round_half_up(ties).tolist() == [1, 2, 3, 0, -1, -2]


def test_rounding_keeps_the_float_dtype():
    assert round_half_up(np.float32([0.5])).dtype == np.float32
    assert round_half_up(np.float64([0.5])).dtype == np.float64


def test_saturate_clamps_to_each_grid():
    codes = [-(10**9), -9, 7, 10**9]
    assert saturate(codes, qint4).tolist() == [-8, -8, 7, 7]
    assert saturate(codes, qint8).tolist() == [-128, -9, 7, 127]
    assert saturate(codes, qint16).tolist() == [-32768, -9, 7, 32767]


def test_saturate_takes_infinities():
    assert saturate(np.array([np.inf, -np.inf]), qint8).tolist() == [127, -128]


def test_arith_needs_no_torch(request):
    """A reader of numbers alone must not pay for torch."""
    modules = ("bias", "quantize", "requantize", "resize", "rounding", "table")
    code = "import sys\n" + "".join(f"import qtune.arith.{name}\n" for name in modules)
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"],
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
