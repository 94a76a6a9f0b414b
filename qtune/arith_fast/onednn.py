"""oneDNN's int8 convolution and linear as exact sums (numerics.md section 7).

Activations are ``torch.uint8`` with a zero point, weights int8; the int32 sum comes back as
float32, exact while it stays below 2**24. Whether this CPU may use them, ``capability`` decides.

Three forms of convolution are wrong in oneDNN as torch 2.13 has it, and are kept away from it:
windows that lie wholly in the pads (garbage, or a crash), and one result on a row with a stride
above 1 (wrong sums), by pads; one channel in and more than 32 out per group (garbage), by
:func:`takes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt

import torch
import torch.nn.functional as F


def available() -> bool:
    """Return whether this torch build has the operators."""
    names = ("qconv_prepack", "qconv2d_pointwise", "qlinear_prepack", "qlinear_pointwise")
    return all(hasattr(torch.ops.onednn, name) for name in names)


def takes(weight_shape: Sequence[int], groups: int) -> bool:
    """Return whether :class:`Int8Conv` is exact for weights [O, I/groups, kh, kw]."""
    return groups == 1 or weight_shape[1] > 1 or weight_shape[0] // groups <= _WIDEST


_WIDEST = 32
"""Most channels out of a group with one channel in."""


class Int8Conv:
    """``factor * sum((x - zero) * w)`` over convolution windows; pads hold ``zero``.

    ``factor`` is a power of two: the result stays exact.
    """

    def __init__(
        self,
        w: torch.Tensor,
        zero: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        factor: int = 1,
    ) -> None:
        self._w, self._zero = w.to(torch.int8), zero
        self._window = [(w.shape[2 + i] - 1) * dilation[i] + 1 for i in range(2)]
        self._grow = [0, 0] if all(map(lt, padding, self._window)) else list(padding)
        inner = list(padding) if self._grow == [0, 0] else [0, 0]
        self._geometry = (list(stride), inner, list(dilation), groups)
        self._scale = torch.full((w.shape[0],), float(factor))
        self._zeros = torch.zeros(w.shape[0], dtype=torch.int8)
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 [N, O, H, W] (channels_last) for uint8 [N, I, H, W]."""
        extra = self._extra_columns(x.shape[3])
        if extra or any(self._grow):
            (top, left), fill = self._grow, self._zero
            x = F.pad(x, [left, left + extra, top, top], value=fill)
            x = x.contiguous(memory_format=torch.channels_last)
        result = self._run(x)
        return result[..., :1] if extra else result

    def _extra_columns(self, width: int) -> int:
        """Columns that add a second result to rows of a single one (which oneDNN gets wrong)."""
        stride, inner, _, _ = self._geometry
        room = width + 2 * (inner[1] + self._grow[1]) - self._window[1]
        is_wrong = stride[1] > 1 and 0 <= room < stride[1]
        return stride[1] - room if is_wrong else 0

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            self._packed = torch.ops.onednn.qconv_prepack(
                self._w, self._scale, 1.0, self._zero, *self._geometry, list(x.shape)
            )
        result: torch.Tensor = torch.ops.onednn.qconv2d_pointwise(
            x,
            1.0,
            self._zero,
            self._packed,
            self._scale,
            self._zeros,
            None,
            *self._geometry,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return result


class Int8Linear:
    """``factor * (x - zero) @ w.T`` for uint8 rows; ``factor`` is a power of two."""

    def __init__(self, w: torch.Tensor, zero: int, factor: int = 1) -> None:
        self._w, self._zero = w.to(torch.int8), zero
        self._scale = torch.full((w.shape[0],), float(factor))
        self._zeros = torch.zeros(w.shape[0], dtype=torch.int8)
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 [R, O] for uint8 [R, I]."""
        if self._packed is None:
            self._packed = torch.ops.onednn.qlinear_prepack(self._w, list(x.shape))
        result: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            x,
            1.0,
            self._zero,
            self._packed,
            self._scale,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return result
