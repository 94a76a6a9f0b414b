from __future__ import annotations

from tests.quantization.conftest import _quantization

__all__ = ["_quantization"]
