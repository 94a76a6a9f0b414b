"""A gate file as values: the model, and the checks in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qtune.testing.gatefile.error import GateFileError
from qtune.testing.gatefile.lines import Path as KeyPath
from qtune.testing.gatefile.lines import line_of


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: what it takes, and what it is for."""

    name: str
    takes: str
    meaning: str


MODEL_KEYS = (
    Key("factory", "module:name", "the float model, or a callable that makes it"),
    Key("onnx", "a path", "an ONNX model, in the place of factory"),
    Key(
        "calibration",
        "module:name",
        "the calibration data, or a callable that gives them; with onnx also a folder",
    ),
    Key("march", "a march", "the chip, such as nash-e; default: that of the run"),
    Key("inputs", "module:name", "what the checks run the stages on; with onnx also a folder"),
    Key("evaluate", "module:name", "callable(model) -> float, such as the accuracy on a test set"),
    Key("qconfig", "module:name", "a qconfig setter, or a callable that makes one"),
    Key("quant_config", "a path, module:name or a table", "with onnx: as for build_model"),
    Key("input_dict", "a table", "with onnx: sizes of inputs, such as {image = [1, 3, 224, 224]}"),
    Key("method", "a text", "how prepare finds the graph: jit_strip (default), jit, symbolic, ..."),
    Key("artefact", "a path", "an integer model .bc, which is then the stage quantized_bc"),
    Key("name", "a text", "the model's name in reports; default: that of the file"),
)
CHECK_KEYS = (
    Key("kind", "a text", "what is checked"),
    Key("stage", "a stage", "what a check of one model looks at"),
    Key("from", "a stage", "of two models the one that is right"),
    Key("to", "a stage", "of two models the one under test"),
    Key("id", "a text", "its name in test ids and baselines, instead of the stages"),
    Key("slow", "true or false", "marks it qtune_slow"),
    Key("marks", "a list of texts", "pytest marks, such as nightly"),
    Key("skip", "a text", "the reason why it does not run"),
    Key("xfail", "a text, or a table of texts", "why it, or each of the layers, is known to fail"),
)


@dataclass(frozen=True, slots=True)
class ModelTable:
    """``[model]``; every key may be missing here, what is needed is checked by the reader."""

    factory: str | None = None
    onnx: str | None = None
    calibration: str | None = None
    march: str | None = None
    inputs: str | None = None
    evaluate: str | None = None
    qconfig: str | None = None
    quant_config: str | Mapping[str, Any] | None = None
    input_dict: Mapping[str, Any] | None = None
    method: str | None = None
    artefact: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One ``[[check]]``. ``number``: from 1; ``label``: what stands in brackets in its name.

    ``xfail``: why it is known to fail; ``xfail_layers``: the same of single layers.
    """

    kind: str
    number: int
    label: str
    stages: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    per_layer: bool = False
    marks: tuple[str, ...] = ()
    skip: str = ""
    xfail: str = ""
    xfail_layers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``consistency[float-quantized_bc]``."""
        return f"{self.kind}[{self.label}]"

    def layer_name(self, layer: str) -> str:
        """``consistency[float-quantized_bc-layer1.0.conv1]``."""
        return f"{self.kind}[{self.label}-{layer}]"


@dataclass(frozen=True, slots=True)
class GateFile:
    """A whole file. ``shown``: its path in messages; ``lines``: where each key stands."""

    path: Path
    shown: str
    model: ModelTable
    checks: Sequence[Check]
    lines: Mapping[KeyPath, int]

    @property
    def folder(self) -> Path:
        """Where the file lies, and what it names."""
        return self.path.parent

    def line(self, *keys: str | int) -> int:
        """The line of a key, or of the table it would be in."""
        return line_of(self.lines, keys)

    def check_line(self, check: Check, *keys: str) -> int:
        """The line of a check, or of one of its keys."""
        return self.line("check", check.number - 1, *keys)

    def error(self, message: str, *keys: str | int) -> GateFileError:
        """An error that begins with the file and the line of ``keys``."""
        return GateFileError(f"{self.shown}:{self.line(*keys)}: {message}")


def markdown(keys: Sequence[Key]) -> str:
    """A table of docs/gate-files.md."""
    rows = [f"| `{key.name}` | {key.takes} | {key.meaning} |" for key in keys]
    return "\n".join(["| key | takes | meaning |", "| --- | --- | --- |", *rows])
