"""Resize in float with the BPU's step ``in / out`` (numerics.md section 3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from qtune.arith.resize import nearest_index


def resize_float(
    x: torch.Tensor, out: tuple[int, int], mode: str, align_corners: bool
) -> torch.Tensor:
    """``x`` [N, C, H, W] resized to ``out``; ``mode`` as in torch."""
    if mode == "bilinear":
        return F.interpolate(x, size=out, mode="bilinear", align_corners=align_corners)
    rows, columns = (
        torch.from_numpy(nearest_index(size, wanted, mode == "nearest-exact")).to(x.device)
        for size, wanted in zip(x.shape[2:], out, strict=True)
    )
    return x.index_select(2, rows).index_select(3, columns)
