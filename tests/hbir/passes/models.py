"""Prepared models for the passes, and the check that all ways to run a module agree."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.bpu.compiler import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import QuantDType, qint8
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule
from tests.hbir.prepared import Prepared

Array = np.ndarray[Any, Any]
X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1


def net(channels: int = 3, dtype: QuantDType = qint8) -> Prepared:
    """conv-relu, pool, and two outputs: quantized features and a high-precision head."""
    torch.manual_seed(0)
    p = Prepared()
    q = p.quantized_input()
    c = p.module(nn.Conv2d(channels, 8, 3, padding=1), q, name="conv", out=None, group="relu")
    r = p.module(nn.ReLU(), c, name="relu", out=dtype)
    m = p.module(nn.MaxPool2d(4), r, name="pool")
    head = p.module(nn.Conv2d(8, 4, 1), m, name="head", out=None)
    return p.outputs(p.dequantized(m, "deq0"), p.dequantized(head, "deq1"))


@cache
def _exported(channels: int) -> bytes:
    x = X[:, :channels]
    return export(net(channels).calibrated(x), x, input_names=["image"]).to_bytes()


def qat_module(channels: int = 3) -> HbirModule:
    """A fresh qat module with the input ``image`` [2, channels, 8, 8]."""
    from qtune.hbir.serialize import from_bytes

    return from_bytes(_exported(channels))


def bits(module: HbirModule, feed: dict[str, Array]) -> tuple[HbirModule, dict[str, Array]]:
    """Convert, run in three ways, demand equal bits; return the integer module and its results."""
    converted = convert(module, "nash-e")
    fast: dict[str, Array] = converted[0].feed(feed)
    slow = converted[0].run(copy.deepcopy(feed), mode="reference")
    onnx = run_in_onnxruntime(converted, feed)
    for name, value in fast.items():
        assert np.array_equal(value, slow[name].numpy()), name
        assert np.array_equal(value, onnx[name]), name
    return converted, fast
