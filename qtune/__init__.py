"""qtune: quantization of PyTorch networks for integer NPUs, with a bit-exact emulated BPU.

The names follow the toolchain: ``set_march``, ``get_march``, ``March``, ``qint8`` and so on live
here, everything else in ``qtune.quantization``, ``qtune.profiler``, ``qtune.bpu.compiler``. These
packages and ``Inputs`` are loaded when first asked for; ``import qtune`` alone loads no torch.

PYTEST_DONT_REWRITE: a program that imports qtune and then calls pytest gets no warning of it.
"""

from __future__ import annotations

import importlib
from typing import Any

from qtune.dtype import QuantDType, qint4, qint8, qint16, qint32
from qtune.march import March, get_march, set_march
from qtune.version import __version__

_PACKAGES = frozenset(
    {"bpu", "fx", "jit", "nn", "profiler", "quantization", "testing", "utils", "qat_mode"}
)

__all__ = [
    "Inputs",  # noqa: F822 - served by __getattr__
    "March",
    "QuantDType",
    "__version__",
    "get_march",
    "qint16",
    "qint32",
    "qint4",
    "qint8",
    "set_march",
]


def __getattr__(name: str) -> Any:
    if name == "Inputs":
        from qtune.capture.inputs import Inputs

        return Inputs
    if name in _PACKAGES:
        return importlib.import_module(f"qtune.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
