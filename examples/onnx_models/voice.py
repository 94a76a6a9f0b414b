"""Half a minute of talk in frames of 32 ms, and a net with a state, carried from frame to frame."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from typing import Any

import numpy as np
import weights

Array = np.ndarray[Any, Any]
Item = tuple[Array, ...]
States = Sequence[tuple[int, ...]]

RATE, FRAME, BEFORE = 16000, 512, 64
"""Samples a second, new samples of a frame, and those of the frame before that stand before it."""
PARTS = {0: slice(600, 770), 1: slice(150, 600), 2: slice(770, 937)}
"""Frames of each part; those of part 1 begin in silence, then two people talk."""
STATES = ((1, 1, 128), (1, 1, 128))
"""Shapes of ``h`` and ``c``; the net's other files have both in one."""


def frames(count: int, part: int) -> tuple[list[Array], Array]:
    """The first ``count`` frames of a part, (1, 576) each, and for each whether somebody speaks."""
    with wave.open(str(weights.path("talk"))) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    scaled = np.concatenate([np.zeros(BEFORE), samples / 32768]).astype(np.float32)
    starts = range(0, len(samples) - FRAME + 1, FRAME)
    rows = [scaled[start : start + BEFORE + FRAME][None] for start in starts]
    middles = (np.array(starts) + FRAME / 2) / RATE
    return rows[PARTS[part]][:count], _speaks(middles)[PARTS[part]][:count]


def _speaks(seconds: Array) -> Array:
    """Whether one of the turns, lines of ``SPEAKER file 1 start duration ...``, covers a time."""
    found = np.zeros(len(seconds), bool)
    for line in weights.path("talk_turns").read_text(encoding="utf-8").splitlines():
        start, duration = (float(word) for word in line.split()[3:5])
        found |= (start <= seconds) & (seconds < start + duration)
    return found


def run(model: Any, items: Sequence[Array], states: States = STATES) -> list[Array]:
    """The probability of speech for each frame; each model carries a state of its own."""
    return [probability for _, probability in _walk(model, items, states)]


def calibration(model: Any, count: int) -> list[Item]:
    """``count`` calls out of those that the float net makes over the calibrating frames."""
    calls = [call for call, _ in _walk(model, frames(PARTS[0].stop, 0)[0], STATES)]
    return calls[:: max(1, len(calls) // count)][:count]


def _walk(model: Any, items: Sequence[Array], states: States) -> list[tuple[Item, Array]]:
    found = []
    current = [np.zeros(shape, np.float32) for shape in states]
    for item in items:
        call = (item, *current)
        result = model(*call)
        values = result.values() if isinstance(result, dict) else result
        probability, *current = (np.asarray(value) for value in values)
        found.append((call, probability))
    return found
