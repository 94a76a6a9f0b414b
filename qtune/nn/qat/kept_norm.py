"""A batch norm that stays behind its GEMM while training: QAT modes WithBN, WithBNReverseFold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from qtune.arith.quantize import SMALLEST_SCALE, ZERO_RANGE_SCALE
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.nn.qat.grids import BIAS, bias_on_grid
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.norm.fold import AffineForm, affine_form, join_affine, scale_channels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qtune.nn.qat.op import QATOp

VANISHING = float(SMALLEST_SCALE)
"""A channel whose ``abs(factor)`` is smaller comes out as its beta: its weight is not quantized."""


class KeptNorm:
    """Ties a GEMM to the batch norm behind it; ``gemm.kept`` and ``norm.kept`` are this object.

    With ``f = gamma / sqrt(running_var + eps)`` per channel, ``fq`` the weight's fake-quantize on
    its scale ``s``, and ``W' = W * f``, ``b' = (b - running_mean) * f + beta``:

    * training, WithBN: ``BN(conv(x, fq(W)) + b)``, ``s`` from ``W``;
    * training, WithBNReverseFold (``reverse``): ``BN(conv(x, fq(W') / f) + b)``, ``s`` from ``W'``.
      No gradient flows through ``f`` here; where ``abs(f) < 2**-40`` the weight stays ``W``;
    * eval: ``conv(x, fq(W')) + b'``, what :func:`~qtune.prepare.absorb.absorb_bn` makes of the
      two: the same bits. WithBN quantizes ``W'`` on the scale ``s * abs(f)``, so that its codes are
      those of ``W`` (ties and the sign of ``f`` apart). The norm passes its input on.

    While the weight is not fake-quantized both run torch's own functions.
    """

    def __init__(self, gemm: QATOp, norm: QATOp, *, reverse: bool) -> None:
        self.gemm = gemm
        self.norm = norm
        self.reverse = reverse

    def __repr__(self) -> str:
        return f"KeptNorm({self.gemm.name}, {self.norm.name}, reverse={self.reverse})"

    @property
    def is_folded(self) -> bool:
        """Whether the GEMM now computes the norm as well."""
        in_training = self.gemm.training or self.norm.normalizes_batches
        return not in_training and self.gemm.fake_quantizes_weight

    def is_passed_by(self, op: QATOp) -> bool:
        """Whether ``op`` has nothing to compute: it is the norm, and the GEMM did it."""
        return op is self.norm and self.is_folded

    def form(self) -> AffineForm:
        """The norm on its running statistics as ``x * factor[c] + shift[c]``, float64."""
        norm = self.norm
        own = {role: norm.param(role) for role in norm.params}
        return affine_form(
            own["running_mean"],
            own["running_var"],
            own.get("weight"),
            own.get("bias"),
            norm.attrs["eps"],
        )

    def folded(
        self, weight: torch.Tensor, bias: torch.Tensor | None, attrs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``W'`` and ``b'``; gradients flow through, to gamma and beta as well."""
        transposed, groups = self._axis(attrs) == 1, self.gemm.weight_groups(attrs)
        return join_affine(weight, bias, self.form(), transposed=transposed, groups=groups)

    def fold(self, values: list[Any], attrs: Mapping[str, Any]) -> None:
        """Put ``W'`` and ``b'`` among the GEMM's operands; ``b'`` on its grid from level 1 on."""
        places = self.gemm.weight_index, self.gemm.spec.roles.index(BIAS)
        weight, bias = self.folded(values[places[0]], values[places[1]], attrs)
        if self.gemm.grid_sources:
            bias = bias_on_grid(self.gemm, bias, self.folded_scale())
        for place, value in zip(places, (weight, bias), strict=True):
            values[place] = value

    def quantize(self, weight: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
        """The GEMM's weight (``W'`` after :meth:`fold`) on the grid that the class text names."""
        groups = self.gemm.weight_groups(attrs)
        view = channel_view(weight, groups)
        if self.is_folded:
            quantized = self._quantize_folded(view, attrs)
        else:
            quantized = self._quantize_before_norm(view, attrs)
        result: torch.Tensor = channel_unview(quantized, groups)
        return result.contiguous() if self.gemm.fake_quantizes_weight else result

    def folded_scale(self) -> torch.Tensor:
        """The weight's scale after folding: ``s``, with WithBN ``s * abs(f)``; float32 [C].

        0 becomes 2**-23, the scale of a tensor of zeros.
        """
        scale: torch.Tensor = self._quantizer.scale.detach()
        if self.reverse:
            return scale
        folded: torch.Tensor = scale.double() * self.form().factor.detach().abs()
        zero = torch.full_like(folded, float(ZERO_RANGE_SCALE))
        return torch.where(folded == 0, zero, folded.clamp(min=VANISHING)).float()

    @property
    def _quantizer(self) -> Any:
        return self.gemm.weight_fake_quant

    def _axis(self, attrs: Mapping[str, Any]) -> int:
        axis = self.gemm.spec.weight_axis
        return 0 if axis is None else axis(attrs)

    def _quantize_folded(self, view: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
        quantizer = self._quantizer
        if self.reverse or not bool(quantizer.observed):
            result: torch.Tensor = quantizer(view)
            return result
        low, high = quantizer.quant_min, quantizer.quant_max
        return fake_quantize(view, self.folded_scale(), low, high, self._axis(attrs))

    def _quantize_before_norm(self, view: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
        if not self.reverse:
            result: torch.Tensor = self._quantizer(view)
            return result
        axis = self._axis(attrs)
        factor = self.form().factor.detach()
        vanishes = factor.abs() < VANISHING
        safe = torch.where(vanishes, 1.0, factor)
        folded = scale_channels(view, factor, axis)
        quantized = self._quantizer(folded)
        if quantized is folded:  # passed on as it is: no rounding by f and back either
            return view
        shape = [1] * view.dim()
        shape[axis] = -1
        return torch.where(vanishes.view(shape), view, scale_channels(quantized, 1 / safe, axis))
