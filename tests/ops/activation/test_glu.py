"""glu: slices, a sigmoid table and a product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.dtype import qint8, qint16
from tests.ops.norm.line import Function, Line, sqnr_db

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(2)) * 3


@pytest.mark.parametrize(
    "module", [nn.GLU(1), nn.GLU(), Function(F.glu)], ids=["dim 1", "last", "function"]
)
def test_glu_runs_as_its_parts_with_equal_bits(module: nn.Module) -> None:
    # A rounded result of n bits has some 6 n dB below it: 84 and 36, less the table and the gate.
    for dtype, least in ((qint16, 78.0), (qint8, 32.0)):
        line = Line.of(module, X, dtype)
        assert sqnr_db(line.integers(), line.reference) > least
        assert line.parts() == ["values", "gates", "sigmoid", "mul"]
    # numerics.md section 5: decomposed operators within 1e-5 relative
    torch.testing.assert_close(line.float_state(), line.reference, rtol=1e-5, atol=1e-6)
