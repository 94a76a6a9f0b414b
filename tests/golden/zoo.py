"""The small networks whose integer modules are kept here, and how their files are made.

``python -m tests.golden.zoo`` writes ``<name>.bc`` and ``hashes.json`` anew. Do that only where a
rule of docs/numerics.md changed on purpose, and say so in the changelog: equal files give equal
bits on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import qtune
from qtune.bpu import compiler
from qtune.hbir.module import Function, HbirModule
from qtune.quantization import FakeQuantState, get_qconfig, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export
from qtune.quantization.qconfig_setter import (
    ConvDtypeTemplate,
    MatmulDtypeTemplate,
    ModuleNameTemplate,
    QconfigSetter,
)

HERE = Path(__file__).parent
HASHES = HERE / "hashes.json"


class Residual(nn.Module):
    """Convolutions with batch norm, a sum, a concat, pools and a linear head; int8."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        y = F.relu(self.point(self.deep(x)) + x)
        return self.head(torch.cat([x, y], 1).mean((2, 3)))


class Decoder(nn.Module):
    """Transposed convolution, bilinear and nearest resize, tables; int8."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2)
        self.out = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.up(x))
        x = F.interpolate(x, size=(13, 11), mode="bilinear", align_corners=False)
        return torch.sigmoid(self.out(F.interpolate(x, scale_factor=2.0)))


class Tokens(nn.Module):
    """Matmuls, softmax, layer norm, tables; int16 activations."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(1, 2) * 0.5, -1)
        return self.out(F.silu(self.norm(x + weights @ v)))


class Recurrent(nn.Module):
    """A GRU and a linear head; int8."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


@dataclass(frozen=True)
class Entry:
    """A network, the shape of its input, its dtypes."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    activations: Any = qtune.qint8
    conv: tuple[Any, Any] = field(default=(qtune.qint8, qtune.qint8))


ZOO: Mapping[str, Entry] = {
    "residual": Entry(Residual, (2, 3, 24, 20)),
    "residual_dual_int16": Entry(
        Residual, (2, 3, 24, 20), qtune.qint16, (qtune.qint16, qtune.qint16)
    ),
    "decoder": Entry(Decoder, (2, 4, 5, 6)),
    "tokens_int16": Entry(Tokens, (2, 7, 8), qtune.qint16),
    "recurrent": Entry(Recurrent, (3, 4, 6)),
}


def build(name: str) -> HbirModule:
    """The integer module of an entry, from fixed seeds."""
    entry = ZOO[name]
    torch.manual_seed(0)
    model = entry.make().eval()
    batches = [torch.randn(entry.shape) for _ in range(3)]
    templates = [
        ModuleNameTemplate({"": entry.activations}),
        ConvDtypeTemplate(*entry.conv),
        MatmulDtypeTemplate(),
    ]
    with qtune.march.march("nash-e"):
        prepared = prepare(model, batches[0], QconfigSetter(get_qconfig(), templates))
        set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
        for batch in batches:
            prepared(batch)
        set_fake_quantize(prepared, FakeQuantState.VALIDATION)
        return compiler.convert(export(prepared.eval(), batches[0]), "nash-e")


def inputs(function: Function) -> dict[str, np.ndarray[Any, Any]]:
    """Whole numbers and quarters in float32, the same on every machine."""
    found = {}
    for seed, item in enumerate(function.inputs):
        rng = np.random.default_rng(seed)
        found[item.name] = (rng.integers(-16, 17, item.shape) / 8).astype(np.float32)
    return found


def digest(function: Function, mode: str = "fast") -> str:
    """SHA-256 of all results on :func:`inputs`, codes of every operator included."""
    total = hashlib.sha256()

    def observe(name: str, result: Any) -> None:
        if result.codes is not None:
            total.update(name.encode())
            total.update(np.ascontiguousarray(result.codes.numpy()).tobytes())

    outputs = function.run(inputs(function), mode=mode, observe=observe)
    for name, tensor in sorted(outputs.items()):
        total.update(name.encode())
        total.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return total.hexdigest()


def main() -> None:
    """Write the files and their hashes."""
    hashes = {}
    for name in ZOO:
        module = build(name)
        module.save(HERE / f"{name}.bc")
        hashes[name] = digest(module[0])
    HASHES.write_text(json.dumps(hashes, indent=2) + "\n")


if __name__ == "__main__":
    main()
