"""The trained models, their data, and the measure of each task."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import file_bytes
import numpy as np
import onnx
import text_images
import voice
import weights

from qtune.testing.onnx_model import OnnxModel

Array = np.ndarray[Any, Any]
Outputs = list[Array]

MAX = {"model_config": {"activation": {"calibration_type": "max"}}}
"""One calibration method instead of the search over all: it builds four times as fast."""


def outputs(model: Any, items: Sequence[Array]) -> Outputs:
    """The output of each item, whatever stage the model is."""
    found = []
    for item in items:
        result = model(item)
        found.append(np.asarray(result[0] if isinstance(result, list | tuple) else result))
    return found


@dataclass(frozen=True, slots=True)
class Subject:
    """A model file with data of its own.

    ``data(count, part)``: inputs and what is right for each; part 0 calibrates, part 2 is there to
    choose settings by, and only part 1 is measured, ``items`` of it. ``score(outputs, right)``: the
    task's measure, 0 to 1. ``agreement(outputs, float outputs)``: 0 to 1, too. ``run(model,
    items)``: the outputs. ``calls(float model, count)``: calibration items of a net that feeds on
    its own outputs.
    """

    model: str
    data: Callable[[int, int], tuple[list[Array], Sequence[Any]]]
    score: Callable[[Outputs, Sequence[Any]], float]
    agreement: Callable[[Outputs, Outputs], float]
    run: Callable[[Any, Sequence[Array]], Outputs] = outputs
    calls: Callable[[Any, int], list[Any]] | None = None
    items: int = 40

    def calibration(self, count: int) -> list[Any]:
        """``count`` calibration items."""
        if self.calls is None:
            return list(self.data(count, 0)[0])
        return self.calls(OnnxModel(weights.model(self.model)), count)


def sqnr_db(expected: Outputs, got: Outputs) -> float:
    """``10 log10(sum x^2 / sum (x - y)^2)`` over all items."""
    x, y = (
        np.concatenate([a.ravel() for a in part]).astype(np.float64) for part in (expected, got)
    )
    return float(10 * np.log10((x**2).sum() / max(((x - y) ** 2).sum(), 1e-30)))


def _same_class(got: Outputs, expected: Outputs) -> float:
    return float(np.mean([a.argmax() == b.argmax() for a, b in zip(got, expected, strict=True)]))


def _right_direction(got: Outputs, labels: Sequence[int]) -> float:
    return float(np.mean([a.argmax() == label for a, label in zip(got, labels, strict=True)]))


def _right_type(got: Outputs, answers: Sequence[set[str]]) -> float:
    names = weights.file_type_labels()
    hits = [names[int(a.argmax())] in right for a, right in zip(got, answers, strict=True)]
    return float(np.mean(hits))


def _right_decision(got: Outputs, speaks: Sequence[bool]) -> float:
    return float(np.mean([a.item() > 0.5 for a in got] == np.array(speaks)))


def _same_decision(got: Outputs, expected: Outputs) -> float:
    return _right_decision(got, [a.item() > 0.5 for a in expected])


def _is_text(output: Array) -> Array:
    return np.asarray(output[0, 0] > 0.3)


def _words_found(got: Outputs, boxes: Sequence[Sequence[text_images.Box]]) -> float:
    """Words of whose box at least a fifth is marked: the net marks the middle of the letters."""
    hits = [
        _is_text(output)[top:bottom, left:right].mean() > 0.2
        for output, page in zip(got, boxes, strict=True)
        for left, top, right, bottom in page
    ]
    return float(np.mean(hits))


def _same_pixels(got: Outputs, expected: Outputs) -> float:
    """Pixels that both call text, of those that one does."""
    both = sum((_is_text(a) & _is_text(b)).sum() for a, b in zip(got, expected, strict=True))
    one = sum((_is_text(a) | _is_text(b)).sum() for a, b in zip(got, expected, strict=True))
    return float(both / one)


def read(output: Array, characters: Sequence[str]) -> str:
    """The text of a recognizer's output: repeats and blanks (class 0) go."""
    classes = output[0].argmax(1)
    kept = [c for i, c in enumerate(classes) if c and (i == 0 or c != classes[i - 1])]
    return "".join(characters[c] for c in kept)


def characters() -> list[str]:
    """The recognizer's classes: nothing, those in the file's metadata, and the blank."""
    entry = onnx.load(weights.path("recognizer")).metadata_props[0]
    return ["", *entry.value.split("\n"), " "]


def _letters_right(got: Outputs, texts: Sequence[str]) -> float:
    known = characters()
    right = sum(_common(read(a, known), text) for a, text in zip(got, texts, strict=True))
    return right / sum(map(len, texts))


def _same_letters(got: Outputs, expected: Outputs) -> float:
    known = characters()
    return _letters_right(got, [read(output, known) for output in expected])


def _common(a: str, b: str) -> int:
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


SUBJECTS = {
    "direction": Subject("direction", text_images.directions, _right_direction, _same_class),
    "detector": Subject("detector", text_images.pages, _words_found, _same_pixels),
    "recognizer": Subject("recognizer", text_images.lines, _letters_right, _same_letters),
    "file_types": Subject("file_types", file_bytes.some, _right_type, _same_class, items=100),
    "voice": Subject(
        "voice",
        voice.frames,
        _right_decision,
        _same_decision,
        voice.run,
        voice.calibration,
        items=450,
    ),
}
