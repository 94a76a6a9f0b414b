"""From a converted or traced model to one integer module: run it, note and join its programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, unflatten
from qtune.errors import ConvertError
from qtune.hbir.builder import (
    META_BATCH,
    META_GROUP,
    META_MARCH,
    META_MEMBERS,
    META_OP,
    META_STAGE,
    GraphBuilder,
)
from qtune.hbir.lowering import onnx_type
from qtune.hbir.module import (
    META_CONSISTENCY,
    META_DESCS,
    META_HIGH_PRECISION,
    META_INPUTS,
    META_NATIVE,
    META_OUTPUTS,
    META_REPORT,
    HbirModule,
)
from qtune.hbir.naming import unique_name
from qtune.hbir.structure import describe
from qtune.nn.quantized.camera import DDR, Ports, camera_stub
from qtune.nn.quantized.program import module_of
from qtune.nn.quantized.qtensor import QTensor
from qtune.nn.quantized.wiring import mapped

_PASSING = frozenset({"aten::detach", "aten::alias", "aten::clone", "aten::contiguous"})
"""What hands its input on."""
NHWC = "NHWC"
_NHWC, _NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
"""The order of axes that makes NHWC of NCHW, and the way back."""
_FACTORIES = frozenset(
    f"aten::{kind}{name}"
    for kind, names in (
        ("new_", ("zeros", "ones", "full", "empty")),
        ("", ("zeros_like", "ones_like", "full_like", "empty_like")),
    )
    for name in names
)
"""What looks at the shape and dtype of its input only."""
_RANDOM = torch.Tag.nondeterministic_seeded
_DECIDING = frozenset({_RANDOM, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_LEVELS = (META_CONSISTENCY, META_HIGH_PRECISION)


@dataclass(slots=True)
class ProgramCall:
    """One run of a program: its module, the tensors in and out."""

    module: HbirModule
    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass(slots=True)
class _Record:
    calls: list[ProgramCall] = field(default_factory=list)
    foreign: list[tuple[str, Tensor]] = field(default_factory=list)
    """Results of other torch operators on data, with the operator."""
    decided: list[str] = field(default_factory=list)
    """Operators whose results another run may have otherwise: reads of data, random numbers."""
    kept: list[Any] = field(default_factory=list)
    """Other results, so that no identity comes twice."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every program that runs, and what else makes tensors."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = _Record()
        self.data = {id(leaf) for leaf in leaves}
        """Tensors that inputs decide."""
        self.same: dict[int, Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        if name == "qtune::run_program":
            inputs, program, signature = args
            call = ProgramCall(module_of(program, signature), list(inputs), list(result))
            self.record.calls.append(call)
            self.data.update(map(id, result))
        elif name in _PASSING and isinstance(result, Tensor):
            self.same[id(result)] = args[0]
            self.record.kept.append(result)
            self.data.update({id(result)} if id(args[0]) in self.data else ())
        else:
            self._note(name, result, flatten([args, kwargs or {}])[0], _DECIDING & set(func.tags))
        return result

    def _note(self, name: str, result: Any, operands: Sequence[Any], decides: Any) -> None:
        """Results of operators on data are foreign, and random numbers.

        What is made of constants is a constant.
        """
        items = result if isinstance(result, (tuple, list)) else (result,)
        tensors = [item for item in items if isinstance(item, Tensor)]
        self.record.kept.append(tensors)
        on_data = name not in _FACTORIES and any(id(value) in self.data for value in operands)
        if decides and (on_data or _RANDOM in decides):
            self.record.decided.append(name)
        if on_data or _RANDOM in decides:
            self.record.foreign.extend((name, item) for item in tensors)
            self.data.update(map(id, tensors))

    def origin(self, tensor: Tensor) -> Tensor:
        """The tensor that was handed on."""
        while id(tensor) in self.same:
            tensor = self.same[id(tensor)]
        return tensor


class Recording:
    """One run of a converted model, or of ``torch.jit.trace`` of one, on example inputs.

    ``inputs`` and ``outputs``: the tensors of the call in order; ``result``: what it returned.
    """

    def __init__(self, model: Callable[..., Any], call: Inputs) -> None:
        leaves, spec = flatten((call.args, dict(call.kwargs)))
        # Tensors of their own, so that each is known by identity even if one was passed twice.
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = unflatten(leaves, spec)
        self.inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.recorder = _Recorder(self.inputs)
        with torch.no_grad(), self.recorder:
            self.result = model(*args, **kwargs)
        self.name = _name(model)
        self.call = {"args": tuple(args), "kwargs": dict(kwargs)}
        self.outputs = [item for item in flatten(self.result)[0] if isinstance(item, Tensor)]

    def module(
        self,
        name: str = "forward",
        input_layouts: Sequence[str] = (),
        output_layouts: Sequence[str] = (),
        input_sources: Sequence[str] = (),
    ) -> HbirModule:
        """The integer module of the run. Layouts: one for each argument, ``NCHW`` or ``NHWC``.

        ``input_sources``: ``ddr``, or ``pyramid`` or ``resizer``, whose inputs are the planes of
        a picture (:mod:`qtune.nn.quantized.camera`) in their own layout. Raises ``ConvertError``
        where the model holds no program or returns QTensors, and where another torch operator
        makes what a program or the result needs.
        """
        self._check()
        joined = _Joined(self.recorder, name)
        calls = self.recorder.record.calls
        sources = input_sources or [DDR] * len(self.inputs)
        layouts = input_layouts or ["NCHW"] * len(self.inputs)
        planes: dict[int, Any] = {}
        for index, leaf in enumerate(self.inputs):
            port = f"_input_{index}"
            if sources[index] == DDR:
                joined.feed(port, leaf, layouts[index])
                continue
            calls, ports = _behind_camera(calls, leaf, port, sources[index])
            planes[id(leaf)] = ports[0][1] if len(ports) == 1 else tuple(t for _, t in ports)
            for plane, tensor in ports:
                joined.feed(plane, tensor, "NCHW")
        for call in calls:
            joined.append(call)
        joined.give(self.outputs, output_layouts or ["NCHW"] * len(self.outputs))
        return joined.finish(mapped(self.call, lambda x: planes.get(id(x), x)), self.result)

    @property
    def marches(self) -> set[str]:
        """The marches that the operators were converted for."""
        return {str(call.module.march) for call in self.recorder.record.calls}

    def results(self) -> dict[str, Tensor]:
        """What every operator gave, codes as they are, under the names of :meth:`module`.

        ``op``, ``op:1`` for a second result. An operator or fused group is one program.
        """
        self._check(returns_codes=True)
        found: dict[str, Tensor] = {}
        taken: set[str] = set()
        for call in self.recorder.record.calls:
            names = _new_names(call.module.model, taken)
            name = names[call.module[0].operator_names()[-1]]
            for index, tensor in enumerate(call.outputs):
                found[f"{name}:{index}" if index else name] = tensor.detach()
        return found

    def _check(self, returns_codes: bool = False) -> None:
        if not self.recorder.record.calls:
            raise ConvertError(
                f"{self.name} runs no operator of a converted model; convert the "
                "prepared model first, and trace the result"
            )
        if not returns_codes and any(isinstance(item, QTensor) for item in self.outputs):
            raise ConvertError(
                "the model returns a QTensor; put a DeQuantStub before each output of the model"
            )


def _name(model: Any) -> str:
    return str(getattr(model, "__qualname__", type(model).__name__))


def _behind_camera(
    calls: Sequence[ProgramCall], leaf: Tensor, port: str, source: str
) -> tuple[list[ProgramCall], Ports]:
    """The calls with planes in place of ``leaf``, and the planes."""
    ports: Ports = ()
    changed = []
    for call in calls:
        if any(tensor is leaf for tensor in call.inputs):
            stub = camera_stub(call.module, leaf, port, source)
            ports = ports or stub.inputs
            call = ProgramCall(stub.module, [tensor for _, tensor in ports], call.outputs)
        changed.append(call)
    if not ports:
        raise ConvertError(f"input_source {source!r}: no QuantStub takes {port}")
    return changed, ports


class _Joined:
    """The graph that the programs of a run form."""

    def __init__(self, recorder: _Recorder, name: str) -> None:
        self.recorder = recorder
        self.builder = GraphBuilder(name)
        self.values: dict[int, ir.Value] = {}
        self.ops: set[str] = set()
        self.foreign = {id(tensor): op for op, tensor in recorder.record.foreign}
        self.facts: dict[str, str] = {}
        self.report: list[Any] = []

    def feed(self, name: str, leaf: Tensor, layout: str) -> None:
        """An input for a tensor of the call; an NHWC one is transposed first."""
        turned = layout == NHWC and leaf.dim() == len(_NHWC)
        shape = [leaf.shape[place] for place in _NHWC] if turned else list(leaf.shape)
        value = self.builder.input(name, onnx_type(leaf.dtype), shape)
        self.values[id(leaf)] = self._turned(value, _NCHW, name) if turned else value

    def give(self, outputs: Sequence[Tensor], layouts: Sequence[str]) -> None:
        """Outputs ``_output_<n>``; NHWC ones are transposed last."""
        for index, (tensor, layout) in enumerate(zip(outputs, layouts, strict=True)):
            name, value = f"_output_{index}", self.value(tensor, "the result")
            if layout == NHWC and tensor.dim() == len(_NHWC):
                value = self._turned(value, _NHWC, name)
            self.builder.output(value, name)

    def _turned(self, value: ir.Value, order: Sequence[int], name: str) -> ir.Value:
        with self.builder.emitting_for(name):
            turned: ir.Value = self.builder.add("Transpose", [value], {"perm": list(order)})
        return turned

    def value(self, tensor: Tensor, user: str) -> ir.Value:
        """The value of a tensor; a tensor that no operator made is a constant."""
        source = self.recorder.origin(tensor)
        if id(source) in self.foreign:
            raise ConvertError(
                f"{user} needs the result of {self.foreign[id(source)]}, which runs on the CPU: "
                "a compiled model holds operators of the converted model only. Move it behind the "
                "DeQuantStub and out of the model, or make it a module that is prepared"
            )
        if id(source) not in self.values:
            array = source.detach().cpu().numpy()
            self.values[id(source)] = self.builder.constant(array, "constant")
        return self.values[id(source)]

    def append(self, call: ProgramCall) -> None:
        """Put the operators of one program behind those before it."""
        model = call.module.__deepcopy__({}).model  # taken apart
        names = _new_names(model, self.ops)
        own = {
            value: self.value(tensor, next(iter(names.values()), "an operator"))
            for value, tensor in zip(model.graph.inputs, call.inputs, strict=True)
        }
        self._take_facts(model)
        results = list(model.graph.outputs)
        model.graph.outputs.clear()  # what a graph lists as output is not stored with its dtype
        for node in list(model.graph):
            for index, source in enumerate(node.inputs):
                if source is None:
                    continue
                if source.const_value is not None and source not in own:
                    own[source] = self._constant(source)
                if source in own:
                    node.replace_input_with(index, own[source])
            model.graph.remove(node)
            self.builder.adopt(node)
            self._rename(node, names)
        for value, tensor in zip(results, call.outputs, strict=True):
            self.values[id(tensor)] = own.get(value, value)

    def _constant(self, value: ir.Value) -> ir.Value:
        """An initializer of a program in the joined graph."""
        content: Any = value.const_value
        op, _, suffix = (value.name or "constant").rpartition(".")
        with self.builder.emitting_for(op):
            new = self.builder.constant(content.numpy(), suffix)
        new.metadata_props.update(value.metadata_props)
        return new

    def _rename(self, node: ir.Node, names: Mapping[str, str]) -> None:
        props = node.metadata_props
        for key in (META_OP, META_GROUP):
            if key in props:
                props[key] = names.get(props[key], props[key])
        if META_MEMBERS in props:
            members = json.loads(props[META_MEMBERS])
            props[META_MEMBERS] = json.dumps([names.get(item, item) for item in members])

    def _take_facts(self, model: ir.Model) -> None:
        props = model.metadata_props
        for key in (META_MARCH, *_LEVELS):
            if key not in props:
                continue
            if self.facts.setdefault(key, props[key]) != props[key]:
                raise ConvertError(
                    f"the parts of this model were converted for {self.facts[key]} and for "
                    f"{props[key]} ({key}); convert all of them alike"
                )
        self.report.extend(json.loads(props.get(META_REPORT, "[]")))

    def finish(self, call: Any, result: Any) -> HbirModule:
        """The module with the containers of the call around inputs and outputs."""
        self.builder.remove_dead_nodes()
        metadata = {
            **self.facts,
            META_STAGE: "quantized",
            META_NATIVE: "1",
            META_BATCH: "fixed",
            META_INPUTS: json.dumps(describe(call, _is_tensor)[0]),
            META_OUTPUTS: json.dumps(describe(result, _is_tensor)[0]),
            META_DESCS: "{}",
            META_REPORT: json.dumps(self.report),
        }
        return HbirModule(self.builder.finish(metadata))


def _new_names(model: ir.Model, taken: set[str]) -> dict[str, str]:
    """Names of a program's operators beside those ``taken`` so far: a second call gets a number."""
    found: dict[str, str] = {}
    for node in model.graph:
        for name in _names(node):
            if name not in found:
                found[name] = unique_name(name, taken)
                taken.add(found[name])
    return found


def _names(node: ir.Node) -> list[str]:
    props = node.metadata_props
    own = [props[key] for key in (META_OP, META_GROUP) if key in props]
    return [*own, *json.loads(props.get(META_MEMBERS, "[]"))]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
