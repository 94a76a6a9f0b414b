"""qtune: quantization of PyTorch networks for integer NPUs, with a bit-exact emulated BPU.

The names follow the toolchain: ``set_march``, ``get_march``, ``March``, ``qint8`` and so on live
here, everything else in ``qtune.quantization``, ``qtune.profiler``, ``qtune.bpu.compiler``.
"""

from qtune.dtype import QuantDType, qint4, qint8, qint16, qint32
from qtune.march import March, get_march, set_march
from qtune.version import __version__

__all__ = [
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
