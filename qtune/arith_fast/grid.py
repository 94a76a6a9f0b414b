"""The exact torch twins of ``qtune.arith.grid``, on held codes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from qtune.arith.grid import ONE, POSITION_BITS, nearest_element
from qtune.arith_fast.held import ZERO, channels_last
from qtune.arith_fast.steps import rescale

_HALF = float(1 << (2 * POSITION_BITS - 1))
_STEP = 2.0 ** (-2 * POSITION_BITS)
_FRAME = (0, 0, 1, 2, 1, 2)
"""A frame of code 0 around a map: taps just outside read it, positions further out are cut."""


def positions_held(
    codes: torch.Tensor,
    m: torch.Tensor,
    n: torch.Tensor,
    base: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor:
    """Return int32 positions of plain integer codes; int64 constants."""
    moved = rescale(codes, m, n).add(base)
    return channels_last(torch.minimum(torch.maximum(moved, low), high).to(torch.int32))


def sample_bilinear_held(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return held qint8 codes of ``x`` [N, C, H, W] at int32 positions [N, h, w, 2].

    float32 is exact here: a sum stays below 255 * 2**16 + 2**15 < 2**24.
    """
    at = _cut(x, at)
    first, fraction = at >> POSITION_BITS, at & (ONE - 1)
    across, down = fraction.float().flatten(0, 2).unsqueeze(-1).unbind(1)
    rows, index, width = _framed(x, first)
    left, upper = ONE - across, ONE - down
    total = rows.index_select(0, index).float().mul_(left * upper)
    total.addcmul_(rows.index_select(0, index + 1).float(), across * upper)
    total.addcmul_(rows.index_select(0, index + width).float(), left * down)
    total.addcmul_(rows.index_select(0, index + width + 1).float(), across * down)
    return _map(total.add_(_HALF).mul_(_STEP).to(torch.uint8), at)


def sample_nearest_held(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """As :func:`sample_bilinear_held`, the nearest elements."""
    at = _cut(x, at)
    rows, index, _ = _framed(x, nearest_element(at))
    return _map(rows.index_select(0, index), at)


def _cut(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Positions no further out than one element, where the frame is."""
    top = torch.tensor([x.shape[3], x.shape[2]], dtype=at.dtype) * ONE
    return torch.minimum(at.clamp(min=-ONE), top).contiguous()


def _framed(x: torch.Tensor, element: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The framed map as rows [pixels, C], the row of each element (x, y), and the frame's width."""
    framed = F.pad(x.permute(0, 2, 3, 1), _FRAME, value=ZERO)
    batch, height, width, channels = framed.shape
    column, row = element.to(torch.int64).add_(1).unbind(-1)
    image = torch.arange(batch).view(-1, 1, 1) * (height * width)
    index = row.mul(width).add_(column).add_(image).view(-1)
    return framed.reshape(batch * height * width, channels), index, width


def _map(rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return channels_last(rows.view(*at.shape[:3], rows.shape[1]).permute(0, 3, 1, 2))
