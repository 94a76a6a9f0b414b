"""Layers that torch lacks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function


class GridSample(nn.Module):
    """Sample a map at absolute positions.

    ``forward(x, grid)``: x [N, C, H, W], grid [N, h, w, 2] holding (x, y) in elements, so that
    (0, 0) is the first element and (W - 1, H - 1) the last; gives [N, C, h, w]. A flow is a grid
    after ``base + flow``. ``mode`` is ``"bilinear"``, ``padding_mode`` ``"zeros"`` or ``"border"``;
    others raise ``ValueError``.
    """

    def __init__(self, mode: str = "bilinear", padding_mode: str = "zeros") -> None:
        super().__init__()
        if mode != "bilinear" or padding_mode not in ("zeros", "border"):
            raise ValueError(
                f"GridSample(mode={mode!r}, padding_mode={padding_mode!r}): expected mode "
                "'bilinear' and padding_mode 'zeros' or 'border'"
            )
        self.mode, self.padding_mode = mode, padding_mode

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return warp(x, grid, mode=self.mode, padding_mode=self.padding_mode)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"mode={self.mode!r}, padding_mode={self.padding_mode!r}"


def warp(x: torch.Tensor, grid: torch.Tensor, *, mode: str, padding_mode: str) -> torch.Tensor:
    """``x`` at absolute positions: ``F.grid_sample`` at ``(2 p + 1) / size - 1``."""
    if has_torch_function((x, grid)):  # one call for whoever records calls
        options = {"mode": mode, "padding_mode": padding_mode}
        result: torch.Tensor = handle_torch_function(warp, (x, grid), x, grid, **options)
        return result
    size = torch.tensor([x.shape[3], x.shape[2]], dtype=grid.dtype, device=grid.device)
    return F.grid_sample(x, (grid * 2.0 + 1.0) / size - 1.0, mode, padding_mode, False)
