"""Networks as onnxruntime's own quantizer writes them: QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from torch import nn

Array = np.ndarray[Any, Any]

STYLES: Mapping[str, Mapping[str, Any]] = {
    "int8_zero_point": {},
    "uint8_per_channel": {"activation_type": QuantType.QUInt8, "per_channel": True},
    "int8_symmetric_per_channel": {
        "per_channel": True,
        "extra_options": {"ActivationSymmetric": True},
    },
}


class Branches(nn.Module):
    """Residual sum, concat, table, transposed convolution, pool, product, linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.mix = nn.Conv2d(16, 8, 1)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)
        self.head = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = torch.relu(self.second(x) + x)
        y = torch.cat([y, F.leaky_relu(x, 0.1)], 1)
        y = self.up(torch.sigmoid(self.mix(y)))
        y = F.avg_pool2d(y, 2)
        return self.head((y * y).mean((2, 3)))


def plain_net() -> nn.Module:
    """Convolution, pool, depthwise convolution, table, global pool, linear."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def token_net() -> nn.Module:
    """Linear layers on three dimensions: MatMul and Add in ONNX."""
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 4))


NETS: Mapping[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (plain_net, (2, 3, 16, 16)),
    "branches": (Branches, (2, 3, 16, 16)),
    "tokens": (token_net, (3, 5, 7)),
}


class _Batches(CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self._items: Iterator[dict[str, Array]] = iter(
            [{"x": samples(shape, seed)} for seed in range(6)]
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self._items, None)


def samples(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantized_file(folder: Path, net: str, style: str, form: QuantFormat = QuantFormat.QDQ) -> Path:
    """The path of the network ``net``, quantized by onnxruntime in the given style."""
    make, shape = NETS[net]
    torch.manual_seed(0)
    source, target = folder / f"{net}.onnx", folder / f"{net}_{style}_{form.name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter and onnxruntime warn about themselves
        if not source.exists():
            torch.onnx.export(
                make().eval(),
                (torch.randn(shape),),
                str(source),
                input_names=["x"],
                output_names=["y"],
                dynamic_axes={"x": {0: "n"}},
                dynamo=False,
            )
        logging.disable(logging.WARNING)
        try:
            quantize_static(
                str(source),
                str(target),
                _Batches(shape),
                quant_format=form,
                **STYLES[style],
            )
        finally:
            logging.disable(logging.NOTSET)
    return target


def graph_of(
    nodes: list[onnx.NodeProto],
    shape: tuple[Any, ...],
    constants: Mapping[str, Array],
    opset: int = 21,
    result: tuple[Any, ...] | None = None,
) -> onnx.ModelProto:
    """A model with the float input ``x`` and the output ``y`` (of its shape, or ``result``)."""
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, result or shape)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    others = sorted({node.domain for node in nodes} - {""})
    opsets = [("", opset), *((domain, 1) for domain in others)]
    imports = [onnx.helper.make_opsetid(*entry) for entry in opsets]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
