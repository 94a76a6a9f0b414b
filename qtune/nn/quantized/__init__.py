"""The modules of converted models: ``Conv2d``, ``ConvReLU2d``, ``Add``, ... on integers.

The classes are made on first use, one for each operator or fused group, named like the float ones;
each is a :class:`~qtune.nn.quantized.op.QuantizedOp`. They pass :class:`QTensor`.
``FloatFunctional`` is the float class, which torch and the toolchain have under this path, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from qtune.nn.qat import QATOp, class_name
from qtune.nn.quantized.functional import QuantizedFunctional
from qtune.nn.quantized.op import QuantizedOp
from qtune.nn.quantized.preserved import PreservedOp
from qtune.nn.quantized.qtensor import QTensor
from qtune.nn.table import TableOp
from qtune.ops.elementwise.float_functional import FloatFunctional

__all__ = [
    "FloatFunctional",
    "PreservedOp",
    "QTensor",
    "QuantizedFunctional",
    "QuantizedOp",
    "quantized_class",
]

_NAME = re.compile(r"[A-Z]\w*")
_ND = re.compile(r"(\d)d$")


def quantized_class(ops: Sequence[QATOp]) -> type[QuantizedOp]:
    """The class for the operators of one group: ``Conv2d``, ``ConvAddReLU2d``, ..."""
    kept = [op for op in ops if op.op != "identity"] or ops[:1]
    names = [class_name(op.spec) if isinstance(op, TableOp) else type(op).__name__ for op in kept]
    size = _ND.search(names[0])
    if len(names) > 1 and size is not None:
        return _make(names[0][: size.start()] + "".join(names[1:]) + size.group())
    return _make("".join(names))


@cache
def _make(name: str) -> type[QuantizedOp]:
    text = f"The operator of a converted model that stands for ``{name}``."
    fields = {"__module__": __name__, "__qualname__": name, "__doc__": text}
    return type(name, (QuantizedOp,), fields)


def __getattr__(name: str) -> Any:
    if _NAME.fullmatch(name):
        return _make(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
