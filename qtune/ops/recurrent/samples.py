"""Random calls of recurrent layers for fuzzing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qtune.ops.spec import Sample


def sampler(
    states: int, gates: int, extra: Mapping[str, Any]
) -> Callable[[np.random.Generator], Sample]:
    """Samples of a layer whose weights hold ``hidden_size`` rows ``gates`` times."""

    def sample(rng: np.random.Generator) -> Sample:
        steps, batch, features, hidden, layers = (int(v) for v in rng.integers(1, 4, 5))
        directions, bias = int(rng.integers(1, 3)), bool(rng.integers(2))
        attrs = {
            "num_layers": layers, "bias": bias, "batch_first": bool(rng.integers(2)),
            "dropout": 0.0, "bidirectional": directions == 2, "training": False, **extra,
            "flat": True,
        }  # fmt: skip
        rows = gates * hidden
        weights: list[tuple[int, ...]] = []
        for layer in range(layers):
            inputs = hidden * directions if layer else features
            biases = [(rows,)] * (2 if bias else 0)
            weights += [(rows, inputs), (rows, hidden), *biases] * directions
        return Sample(((steps, batch, features), *(None,) * states, *weights), attrs)

    return sample
