"""grid_sample and warp of a prepared model as the integers do it (numerics.md section 4, level 4).

Positions have 8 fraction bits and weights come from them, with one rounding on the data's grid. The
coordinates lie on a power-of-two grid from level 1 on, so the integer positions are those of the
real coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qtune.arith.grid import ONE
from qtune.arith_fast.fake_quantize import dequantize_held, quantize_held
from qtune.arith_fast.grid import sample_bilinear_held
from qtune.dtype import qint8
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    Attrs,
    Builder,
    ConvertContext,
    FloatConst,
    FloatNode,
    HbirKernel,
    LowerCall,
    Value,
)
from qtune.ops.registry import register_kernel
from qtune.ops.resize.sampling import (
    Pairs,
    coordinates,
    emit_positions,
    emit_sample,
    float_positions,
    sampled_map,
)

OP = "FakeSampleBilinear"
DOMAIN = "qtune"
_FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class Geometry:
    """What coordinates mean: ``elements`` that 1 moves by, ``base``: position of 0 in 256ths.

    ``high``: the last position of a map that continues at its border, ``None`` for zeros outside.
    All (x, y).
    """

    elements: Pairs
    base: Pairs
    high: tuple[int, int] | None

    @classmethod
    def of(cls, elements: Pairs, base: Pairs, size: Sequence[int], padding_mode: str) -> Geometry:
        """``size``: (height, width) of the map."""
        height, width = size
        is_border = padding_mode == "border"
        high = ((width - 1) * ONE, (height - 1) * ONE) if is_border else None
        return cls(elements, base, high)

    def clamped(self, at: torch.Tensor) -> torch.Tensor:
        """Positions cut to the map where it continues at its border."""
        if self.high is None:
            return at
        return torch.minimum(at.clamp(min=0), torch.tensor(self.high, device=at.device))


def sample_exactly(
    scale: float, x: torch.Tensor, grid: torch.Tensor, geometry: Geometry
) -> torch.Tensor:
    """``x`` [N, C, H, W] on the grid of ``scale`` at ``grid`` [N, h, w, 2], as floats."""
    at = geometry.clamped(float_positions(grid, geometry.elements, geometry.base))
    held = quantize_held(x.float().cpu(), scale, qint8)
    codes = sample_bilinear_held(held, at.cpu().to(torch.int32))
    return dequantize_held(codes, torch.tensor(scale)).to(x.device, x.dtype)


def lower_exactly(b: Builder, call: LowerCall, scale: float, geometry: Geometry) -> Value:
    """Emit FakeSampleBilinear."""
    x, grid = call.operands
    low, high = ([-_FAR] * 2, [_FAR] * 2) if geometry.high is None else ([0, 0], geometry.high)
    constants: dict[str, np.ndarray[Any, Any]] = {
        "scale": np.array(scale, dtype=np.float32),
        "elements": np.array(geometry.elements, dtype=np.float32),
        "base": np.array(geometry.base, dtype=np.int64),
        "low": np.array(low, dtype=np.int64),
        "high": np.array(high, dtype=np.int64),
    }
    values = [b.constant(array, name) for name, array in constants.items()]
    return b.add(OP, [x, grid, *values], {}, domain=DOMAIN)


def _geometry(elements: Any, base: Any, low: Any, high: Any) -> Geometry:
    across, down = (float(v) for v in elements)
    right, below = (int(v) for v in high)
    is_open = int(low[0]) < 0
    origin = (float(base[0]), float(base[1]))
    return Geometry((across, down), origin, None if is_open else (right, below))


def _run_float(
    attrs: Attrs, x: torch.Tensor, grid: torch.Tensor, scale: torch.Tensor, *constants: Any
) -> torch.Tensor:
    return sample_exactly(float(scale), x, grid, _geometry(*(c.tolist() for c in constants)))


def _convert(ctx: ConvertContext, node: FloatNode) -> Any:
    x = sampled_map(ctx, node)
    constants = node.operands[2:]
    if x is None or not all(isinstance(part, FloatConst) for part in constants):
        raise ConvertError(f"{node.name}: {node.op_type} needs a quantized map; export again")
    scale, *rest = (part.data for part in constants if isinstance(part, FloatConst))
    geometry = _geometry(*(part.tolist() for part in rest))
    border = None if geometry.high is None else [edge // ONE + 1 for edge in geometry.high]
    x = ctx.requantize(x, float(scale.reshape(())), qint8)
    grid = coordinates(ctx, node, 1, "grid")
    at = emit_positions(ctx, grid, geometry.elements, [int(v) for v in geometry.base], border)
    return emit_sample(ctx, x, at)


register_kernel(HbirKernel(OP, DOMAIN, run_float=_run_float, convert=_convert))
