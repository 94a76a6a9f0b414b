"""What torch functions do with a ``QTensor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from qtune.errors import ArgumentError
from qtune.march import get_march
from qtune.nn.qat.op import TRAINING, QATOp
from qtune.nn.quantized.frozen import Grid
from qtune.nn.quantized.qtensor import QTensor, untraced
from qtune.ops import registry
from qtune.ops.spec import Bound, OpSpec, Rule

_FACTS = frozenset(
    {
        "size", "dim", "ndimension", "numel", "nelement", "stride", "__len__", "is_contiguous",
        "get_device", "storage_offset", "ndim", "is_cuda", "is_cpu", "is_meta", "layout",
        "requires_grad", "is_leaf", "names", "is_sparse", "is_mkldnn", "is_xla",
    }
)  # fmt: skip
"""Questions that the codes answer."""
_MOVES = frozenset({"detach", "clone", "contiguous", "cpu", "cuda", "to", "pin_memory"})
"""What gives the same codes in another place."""
_OWN = frozenset({"dequantize", "int_repr", "q_scale", "q_zero_point", "q_per_channel_scales",
                  "q_per_channel_axis"})  # fmt: skip
_KEPT = (Rule.INPUT_SCALE, Rule.NO_SCALE)


def apply(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of ``func`` on arguments with a QTensor among them, or one clear error."""
    name = _name(func)
    first = args[0] if args else None
    if name in _OWN and isinstance(first, QTensor):
        return getattr(first, name)(*args[1:], **kwargs)
    if name in _FACTS and isinstance(first, QTensor):
        return _fact(func, first, args[1:], kwargs)
    if name in _MOVES and isinstance(first, QTensor):
        return _moved(name, first, args[1:], kwargs)
    if name == "is_floating_point":
        return False
    found = _operator(func, name)
    if found is None:
        raise _refused(name, "it is no operator of the registry")
    spec, target = found
    return _run(name, spec, target.bind(*args, **kwargs))


def _name(func: Any) -> str:
    """``view``; for the getter of an attribute, the attribute."""
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__"):
        owner = getattr(func, "__self__", None)
        return str(getattr(owner, "__name__", name))
    return name


def _fact(func: Any, x: QTensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with untraced():
        return func(x.int_repr(), *args, **kwargs)


def _moved(name: str, x: QTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    codes = getattr(x.int_repr(), name)(*args, **kwargs)
    if codes.dtype != x.int_repr().dtype:
        raise ArgumentError(
            f"QTensor.{name}: the dtype of codes can't be changed to {codes.dtype}; call "
            ".dequantize() first"
        )
    return x.with_codes(codes)


def _operator(func: Any, name: str) -> Any:
    found: Any = registry.find_function(func)
    if found is None and getattr(Tensor, name, None) is func:
        found = registry.find_method(name)
    return found


def _run(name: str, spec: OpSpec, bound: Bound) -> Any:
    """Run an operator of the registry that keeps the operand's scale or has none."""
    from qtune.nn.quantized.op import QuantizedOp

    grid = None
    if spec.rule not in _KEPT:
        grid = _common_grid(bound.tensors) if spec.family == "movement" else None
        if grid is None:
            raise _refused(name, f"its result needs a scale of its own ({spec.name})")
    attrs = {**bound.attrs, **({TRAINING: False} if TRAINING in bound.attrs else {})}
    op = QATOp(spec.name, f"_functional_{spec.name}", attrs)
    op.activation_post_process = grid  # type: ignore[assignment]
    return QuantizedOp([op], march=get_march().value)(*bound.tensors)


def _common_grid(operands: Sequence[Any]) -> Grid | None:
    """The one grid of all operands that are tensors, if they have one."""
    tensors = [item for item in operands if isinstance(item, QTensor)]
    if any(isinstance(item, Tensor) and not isinstance(item, QTensor) for item in operands):
        return None
    grids = {(item.dtype, item.scales) for item in tensors}
    first = tensors[0]
    return Grid(first.q_per_channel_scales(), first.dtype) if len(grids) == 1 else None


def _refused(name: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"{name} on a QTensor: {why}. Write it as a module that prepare can give a scale "
        "(qtune.quantization.FloatFunctional for add, mul, cat, ...), call the whole converted "
        "model, or .dequantize() the operand"
    )
