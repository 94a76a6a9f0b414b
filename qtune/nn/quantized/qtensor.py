"""``QTensor``: integer codes with their scale, as a tensor that models pass on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from qtune.arith.quantize import quantize
from qtune.dtype import QuantDType, quant_dtype
from qtune.errors import ArgumentError
from qtune.ops.quant.codes import stored


@contextmanager
def untraced() -> Iterator[None]:
    """Within the block ``torch.jit.trace`` records nothing: sizes are plain numbers."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def plain_shape(x: Tensor) -> tuple[int, ...]:
    """The shape as plain numbers, also under ``torch.jit.trace``."""
    with untraced():
        return tuple(x.shape)


class QTensor(Tensor):
    """``real = code * scale``: what the modules of a converted model take and give.

    ``codes``: int8 (qint4, qint8) or int16 (qint16) tensor. ``scale``: a number, or float32 [C]
    along ``ch_axis``. ``dtype`` is the quantized dtype; shape and device are those of the codes.
    torch functions that only move values (``view``, ``permute``, ``x[i]``, ``cat`` on one scale)
    or give plain tensors (comparisons, argmax) run on the codes on the emulated BPU; every other
    one raises ``ArgumentError``, because its result would need a scale.
    """

    _codes: Tensor
    _scale: Tensor
    _scales: tuple[float, ...]
    _quant_dtype: QuantDType
    _ch_axis: int
    table_source: Any = None
    """Where the values come from, for int16 tables behind them (``qtune.nn.table.TableSource``)."""

    @staticmethod
    def __new__(
        cls, codes: Tensor, scale: float | Tensor, dtype: object, ch_axis: int = -1
    ) -> QTensor:
        """Check the parts and put them together; the codes are not copied."""
        kind = quant_dtype(dtype)
        with untraced():
            scales = torch.as_tensor(scale, dtype=torch.float32).detach().reshape(-1).cpu()
            numbers = tuple(scales.tolist())
            _check(codes, numbers, kind, ch_axis)
            result: QTensor = Tensor._make_wrapper_subclass(
                cls, tuple(codes.shape), dtype=torch.float32, device=codes.device
            )
        result._codes, result._scale, result._scales = codes.detach(), scales, numbers
        result._quant_dtype, result._ch_axis = kind, ch_axis
        return result

    @classmethod
    def quantize(
        cls, x: Tensor, scale: float | Tensor, dtype: object, ch_axis: int = -1
    ) -> QTensor:
        """``clamp(floor(x / scale + 0.5), qmin, qmax)`` of a float tensor (numerics.md 1)."""
        if torch._C._get_tracing_state() is not None:
            raise ArgumentError("QTensor.quantize can't be traced; use a QuantStub in the model")
        kind = quant_dtype(dtype)
        scales = torch.as_tensor(scale, dtype=torch.float32).detach().cpu().numpy().reshape(-1)
        codes = stored(quantize(x.detach().cpu().numpy(), scales, kind, ch_axis), kind)
        made = torch.from_numpy(codes).to(x.device)
        return cls(made, torch.from_numpy(scales), kind, ch_axis)

    @property
    def dtype(self) -> QuantDType:  # type: ignore[override]
        """The quantized dtype."""
        return self._quant_dtype

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """Shape of the codes."""
        return torch.Size(plain_shape(self._codes))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Device of the codes."""
        return self._codes.device

    @property
    def scales(self) -> tuple[float, ...]:
        """All scales as numbers."""
        return self._scales

    @property
    def is_quantized(self) -> bool:  # type: ignore[override]
        """True."""
        return True

    @property
    def ch_axis(self) -> int:
        """The axis of the scales, -1 for one scale."""
        return self._ch_axis

    def int_repr(self) -> Tensor:
        """The codes: a plain int8 or int16 tensor."""
        return self._codes

    def q_scale(self) -> float:
        """The one scale; ``ArgumentError`` where there is one for each channel."""
        if len(self._scales) != 1:
            raise ArgumentError(
                f"q_scale: this QTensor has {len(self._scales)} scales along axis "
                f"{self._ch_axis}; use q_per_channel_scales()"
            )
        return self._scales[0]

    def q_zero_point(self) -> int:
        """0: the grids are symmetric."""
        return 0

    def q_per_channel_scales(self) -> Tensor:
        """All scales, float32 [C]."""
        return self._scale

    def q_per_channel_axis(self) -> int:
        """The axis of the scales, -1 for one scale."""
        return self._ch_axis

    def qscheme(self) -> torch.qscheme:
        """Symmetric, per tensor or per channel."""
        single = self._ch_axis < 0
        return torch.per_tensor_symmetric if single else torch.per_channel_symmetric

    def dequantize(self) -> Tensor:
        """The real numbers, float32."""
        scale = self._scale.to(self.device)
        after = self.dim() - self._ch_axis - 1
        scale = scale.reshape(()) if self._ch_axis < 0 else scale.reshape(-1, *[1] * after)
        return self._codes.to(torch.float32) * scale

    def with_codes(self, codes: Tensor) -> QTensor:
        """Other codes on the same grid."""
        result = QTensor(codes, self._scale, self._quant_dtype, self._ch_axis)
        result.table_source = self.table_source
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        scale = f"{len(self._scales)} scales" if self._ch_axis >= 0 else f"{self._scales[0]:g}"
        return f"QTensor({self._codes}, dtype={self.dtype}, scale={scale})"

    def __deepcopy__(self, memo: dict[int, Any]) -> QTensor:
        return self.with_codes(self._codes.clone())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return QTensor, (self._codes, self._scale, self._quant_dtype, self._ch_axis)

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Facts of the tensor, moves to a device, and the registry's operators without scale."""
        from qtune.nn.quantized.functions import apply

        return apply(func, args, dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """torch's own kernels know no codes."""
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return args[0].with_codes(args[0]._codes)
        raise ArgumentError(
            f"{func} has no form on a QTensor; call .dequantize() for real numbers or .int_repr() "
            "for the codes. Outputs of a model to be traced need a DeQuantStub"
        )


def _check(codes: Any, scales: tuple[float, ...], dtype: QuantDType, ch_axis: int) -> None:
    stores = {4: torch.int8, 8: torch.int8, 16: torch.int16, 32: torch.int32}[dtype.bits]
    if not isinstance(codes, Tensor) or isinstance(codes, QTensor) or codes.dtype != stores:
        got = codes.dtype if isinstance(codes, Tensor) else type(codes).__name__
        raise ArgumentError(f"QTensor: codes of {dtype} are a {stores} tensor, got {got}")
    if not all(0 < scale < math.inf for scale in scales):
        raise ArgumentError(f"QTensor: scales must be positive numbers, got {list(scales)}")
    wanted = 1
    if ch_axis >= 0:
        wanted = codes.shape[ch_axis] if ch_axis < codes.dim() else 0
    if len(scales) != wanted:
        raise ArgumentError(
            f"QTensor: expected {wanted} scale(s) for ch_axis={ch_axis}, got {len(scales)}"
        )
