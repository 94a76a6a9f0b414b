"""HbirModule and Function: an HBIR file in memory, callable, without torch until it is called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from qtune.errors import ArgumentError, HbirError
from qtune.hbir.argument import Argument, Kind
from qtune.hbir.builder import (
    META_BATCH,
    META_GROUP,
    META_MARCH,
    META_OP,
    META_RESULT,
    META_SCHEMA,
    META_STAGE,
    names_of,
)
from qtune.hbir.feeding import bind_call, check_feed, outputs_from
from qtune.hbir.operation import Operation
from qtune.hbir.precision import PrecisionTable
from qtune.hbir.result import Observer, Watch

if TYPE_CHECKING:
    import numpy as np
    import torch

    from qtune.bpu.interpreter import Program
    from qtune.bpu.operator import OperatorRunner

META_DESCS = "qtune.descs"
META_INPUTS = "qtune.inputs"
META_OUTPUTS = "qtune.outputs"
META_NATIVE = "qtune.native_pytree"
META_REPORT = "qtune.report"
META_HIGH_PRECISION = "qtune.high_precision_qpp"
META_CONSISTENCY = "qtune.consistency_level"


class Function:
    """The one function of a module: named inputs and outputs, and the operators between them.

    Calling it takes what the float model's ``forward`` took (tensors or NumPy arrays inside the
    same containers), or one dict of arrays by input name, and gives the structure that ``forward``
    gave, filled with torch tensors.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._programs: dict[str, Program] = {}
        self._watch: Watch | None = None

    @property
    def model(self) -> ir.Model:
        """The graph with its metadata."""
        return self._model

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the file."""
        return self._model.metadata_props

    def changed(self) -> None:
        """Forget what was derived from the graph; whoever changes the graph calls it."""
        self._programs.clear()
        for name in ("inputs", "outputs", "input_structure", "output_structure"):
            self.__dict__.pop(name, None)

    def check_editable(self) -> None:
        """Raise where the function can't be changed (a compiled one); this one can."""

    def __repr__(self) -> str:
        inputs = ", ".join(str(item) for item in self.inputs)
        return f"Function {self.name}({inputs})"

    @property
    def name(self) -> str:
        """The name given at export."""
        return self._model.graph.name or "forward"

    @cached_property
    def inputs(self) -> tuple[Argument, ...]:
        """Name, shape, dtype and description of each input, in order."""
        return self._arguments(self._model.graph.inputs, "inputs")

    @cached_property
    def outputs(self) -> tuple[Argument, ...]:
        """Name, shape, dtype and description of each output, in order."""
        return self._arguments(self._model.graph.outputs, "outputs")

    @property
    def flatten_inputs(self) -> tuple[Argument, ...]:
        """The inputs without containers."""
        return self.inputs

    @property
    def flatten_outputs(self) -> tuple[Argument, ...]:
        """The outputs without containers."""
        return self.outputs

    @property
    def support_pytree(self) -> bool:
        """Whether a call takes and returns the containers of the float model."""
        return self._model.metadata_props.get(META_NATIVE, "1") == "1"

    @property
    def open_batch(self) -> bool:
        """Whether other sizes of the first dimension than the example's run too."""
        return self._model.metadata_props.get(META_BATCH) == "open"

    @property
    def desc(self) -> str:
        """Free text kept in the file; can be set."""
        return self._model.doc_string or ""

    @desc.setter
    def desc(self, text: str) -> None:
        self.check_editable()
        if not isinstance(text, str):
            raise ArgumentError(f"{self.name}: expected a text as desc, got {text!r}")
        self._model.doc_string = text

    @cached_property
    def input_structure(self) -> dict[str, Any]:
        """Containers around the inputs: ``{"args": ..., "kwargs": ...}`` (hbir/structure.py)."""
        return self._structure(META_INPUTS)

    @cached_property
    def output_structure(self) -> dict[str, Any]:
        """Containers around the outputs (hbir/structure.py)."""
        return self._structure(META_OUTPUTS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; raise ``RunError`` naming the input that does not fit."""
        feed = bind_call(self, args, kwargs)
        results = self.run(feed)
        return outputs_from(self, [results[item.name] for item in self.outputs])

    def feed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on arrays by input name and return arrays by output name.

        The results are NumPy arrays where every input was one, else torch tensors.
        """
        results = self.run(inputs)
        if all(type(value).__module__.startswith("numpy") for value in inputs.values()):
            return {name: value.numpy() for name, value in results.items()}
        return dict(results)

    def run(
        self,
        inputs: Mapping[str, torch.Tensor | np.ndarray[Any, Any]],
        mode: str = "fast",
        observe: Observer | None = None,
    ) -> dict[str, torch.Tensor]:
        """Run on arrays by input name; return torch tensors by output name.

        ``mode``: ``"fast"`` or ``"reference"`` (NumPy oracle, equal in every bit). ``observe`` gets
        ``(operator name, OpResult)`` after each operator.
        """
        tensors = check_feed(self, inputs)
        if observe is not None or self._watch is None:
            return self.program(mode).run(tensors, observe)
        with self._watch(tensors) as shown:
            return self.program(mode).run(tensors, shown)

    @property
    def saturation(self) -> dict[str, int]:
        """Operator -> accumulator elements that were clamped in the latest run (numerics 2.1)."""
        programs = self._programs.values()
        return {op: n for program in programs for op, n in program.saturation.items()}

    def program(self, mode: str = "fast") -> Program:
        """The execution plan for ``mode``, made at first use."""
        if mode not in {"fast", "reference"}:
            raise ArgumentError(f"mode must be 'fast' or 'reference' but got {mode!r}")
        if mode not in self._programs:
            from qtune.bpu.interpreter import program_of

            self._programs[mode] = program_of(self._model, mode)
        return self._programs[mode]

    def operator_names(self) -> list[str]:
        """Names of the operators with a result of their own, in order of execution."""
        return [
            node.metadata_props[META_OP]
            for node in self._model.graph
            if META_RESULT in node.metadata_props
        ]

    def groups(self) -> dict[str, str]:
        """Operator name -> name of its fused group."""
        return {
            name: node.metadata_props[META_GROUP]
            for node in self._model.graph
            if META_OP in node.metadata_props
            for name in names_of(node)
        }

    def extract_operator(self, name: str) -> OperatorRunner:
        """Return the operator ``name`` (its whole fused group) as a callable of its own."""
        from qtune.bpu.operator import extract_operator

        return extract_operator(self._model, name)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All nodes in order of execution: name, type, operands, attributes."""
        return tuple(Operation.of(node) for node in self._model.graph)

    def remove_io_op(
        self, op_types: Sequence[str] | None = None, op_names: Sequence[str] | None = None
    ) -> list[str]:
        """Remove operators from inputs and outputs, by type or name; return the nodes' names.

        Types: Quantize, Dequantize, Transpose, Cast, Reshape, Softmax. Goes on as long as an
        argument has one of them. ``argument.scale`` keeps what host code needs to quantize inputs
        and dequantize outputs itself.
        """
        from qtune.hbir.passes.remove import remove_io_op

        return remove_io_op(self, op_types, op_names)

    def extract_function(
        self, input_names: Sequence[str], output_names: Sequence[str]
    ) -> HbirModule:
        """A module of its own that computes some values or operators from others, by name."""
        from qtune.hbir.passes.extract import extract_function

        return extract_function(self, input_names, output_names)

    def descs(self, kind: Kind) -> dict[str, str]:
        """Descriptions of the inputs or the outputs by name."""
        table = _parsed(META_DESCS, self.metadata.get(META_DESCS, "{}"))
        return dict(table.get(kind, {}))

    def _arguments(self, values: Any, kind: Kind) -> tuple[Argument, ...]:
        return tuple(Argument(self, value, kind) for value in values)

    def _structure(self, key: str) -> dict[str, Any]:
        text = self._model.metadata_props.get(key)
        if text is None:
            raise HbirError(f"function {self.name!r} keeps no containers ({key} is missing)")
        found: dict[str, Any] = _parsed(key, text)
        return found


class HbirModule:
    """A model in HBIR: an ONNX graph with the domain ``qtune`` and its metadata.

    ``stage`` is ``"qat"`` (float with fake-quantize, after export) or ``"quantized"`` (integers,
    after convert). ``march`` is ``None`` before convert.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.functions: tuple[Function, ...] = (Function(model),)

    @property
    def graphs(self) -> tuple[Function, ...]:
        """The functions."""
        return self.functions

    def __getitem__(self, key: int | str) -> Function:
        if isinstance(key, str):
            for function in self.functions:
                if function.name == key:
                    return function
            known = ", ".join(function.name for function in self.functions)
            raise ArgumentError(f"no function {key!r} in this module; it has: {known}")
        try:
            return self.functions[key]
        except (IndexError, TypeError):
            raise ArgumentError(
                f"no function {key} in this module; it has {len(self.functions)}"
            ) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the only function; ``ArgumentError`` names them where there are several."""
        if len(self.functions) != 1:
            known = ", ".join(function.name for function in self.functions)
            raise ArgumentError(
                f"this module has {len(self.functions)} functions ({known}); call one of them by "
                "name, as in module['NAME'](...)"
            )
        return self.functions[0](*args, **kwargs)

    def __len__(self) -> int:
        return len(self.functions)

    def __iter__(self) -> Iterator[Function]:
        return iter(self.functions)

    @property
    def stage(self) -> str:
        """``"qat"`` or ``"quantized"``."""
        return self.model.metadata_props.get(META_STAGE, "")

    @property
    def march(self) -> str | None:
        """The march that convert aimed at."""
        return self.model.metadata_props.get(META_MARCH)

    @property
    def version(self) -> str:
        """Version of the file format."""
        return self.model.metadata_props.get(META_SCHEMA, "")

    @property
    def precision_config(self) -> PrecisionTable:
        """Operator name -> ``PrecisionConfig``: set it before convert for single operators.

        ``m.precision_config["head.fc"] = PrecisionConfig.HIGH_PRECISION_QPP``.
        """
        return PrecisionTable(self.model)

    def get_asm(self, enable_debug_info: bool = False) -> str:
        """The module as text (protobuf's text format), which :meth:`parse` reads.

        ``enable_debug_info``: with the attributes and shapes of the float model's operators.
        """
        from qtune.hbir.serialize import to_text

        return to_text(self, enable_debug_info)

    @staticmethod
    def parse(asm: str) -> HbirModule:
        """The module of a text that :meth:`get_asm` gave; ``HbirError`` says what is wrong."""
        from qtune.hbir.serialize import from_text

        return from_text(asm)

    @property
    def report(self) -> tuple[dict[str, Any], ...]:
        """What convert noted: operators that stay float with the reason, widened scales, ..."""
        return tuple(_parsed(META_REPORT, self.model.metadata_props.get(META_REPORT, "[]")))

    @property
    def consistency_level(self) -> int | None:
        """The consistency level of the model it was exported from (numerics.md section 4)."""
        text = self.model.metadata_props.get(META_CONSISTENCY, "")
        return int(text) if text else None

    @property
    def _high_precision_qpp(self) -> bool:
        return self.model.metadata_props.get(META_HIGH_PRECISION, "0") == "1"

    def to_bytes(self) -> bytes:
        """The content of the ``.bc`` file."""
        from qtune.hbir.serialize import to_bytes

        return to_bytes(self)

    def save(self, path: str | Path) -> None:
        """Write the ``.bc`` file, whole or not at all."""
        from qtune.hbir.serialize import save

        save(self, path)

    def __reduce__(self) -> tuple[Any, ...]:
        from qtune.hbir.serialize import from_bytes

        return from_bytes, (self.to_bytes(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> HbirModule:
        from qtune.hbir.serialize import from_bytes

        return from_bytes(self.to_bytes())

    def __repr__(self) -> str:
        where = f", march={self.march}" if self.march else ""
        return f"HbirModule(stage={self.stage}{where}, functions={list(self.functions)})"


def _parsed(key: str, text: str) -> Any:
    """The JSON that the metadata hold under ``key``."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise HbirError(
            f"the metadata {key} of this module are no JSON: the file was edited or damaged. "
            "Export and save the model again"
        ) from None
