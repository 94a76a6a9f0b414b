"""Sessions of onnxruntime for parts of a model; parts of the same structure share one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from qtune.bpu.ort import new_session
from qtune.errors import RunError
from qtune.onnx_debug.blocked import DOMAIN, Form, renamed

Array = np.ndarray[Any, Any]

SHARED_BYTES = 1024  # from here on a constant is handed to the runtime beside the graph


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A session as one part of the model sees it.

    ``names``: the session's names of the part's tensors. ``forms``: of the inputs that are weights.
    ``fixed``: the channels that some inputs must have. ``shared``: constants that it may use where
    they are, so they have to stay.
    """

    session: Any
    where: str
    inputs: tuple[str, ...]
    names: Mapping[str, str]
    forms: Mapping[str, Form]
    fixed: Mapping[str, int]
    shared: Mapping[str, Array]

    def run(self, feed: Mapping[str, Array], wanted: Sequence[str]) -> dict[str, Array]:
        """The tensors ``wanted``; ``feed`` may hold more than the inputs."""
        for name, channels in self.fixed.items():
            if feed[name].shape[1] != channels:
                raise RunError(
                    f"onnxruntime can't run {self.where}: {name} has the shape "
                    f"{list(feed[name].shape)}, the weights take {channels} channels"
                )
        given = {self.names[name]: feed[name] for name in self.inputs}
        try:
            made = self.session.run([self.names[name] for name in wanted], given)
        except Exception as error:
            raise RunError(f"onnxruntime can't run {self.where}: {error}") from error
        return dict(zip(wanted, made, strict=True))


class Structures:
    """Makes the sessions of parts of ``source``."""

    def __init__(self, source: onnx.ModelProto) -> None:
        self._source = source
        self._local = {(item.domain, item.name) for item in source.functions}
        self._made: dict[bytes, Any] = {}

    def session(
        self,
        nodes: Sequence[onnx.NodeProto],
        given: Mapping[str, Array],
        outputs: Sequence[str],
        constants: Mapping[str, Array],
        forms: Mapping[str, Form] | None = None,
        fixed: Mapping[str, int] | None = None,
    ) -> Session:
        """``given``: arrays like those of the inputs."""
        names = _names([*given], nodes, outputs)
        held = {names[n]: array for n, array in constants.items()}
        shared = {n: array for n, array in held.items() if array.nbytes >= SHARED_BYTES}
        graph = helper.make_graph(
            [_nameless(renamed(node, names)) for node in nodes],
            "part",
            [_input(names[name], array) for name, array in given.items()],
            [onnx.ValueInfoProto(name=names[name]) for name in outputs],
            [_constant(name, array, name in shared) for name, array in held.items()],
        )
        own = [node.name for node in nodes if node.name]  # not those that change the layout
        where = f"the nodes {own[0]} to {own[-1]}" if len(own) > 1 else f"the node {own[0]}"
        made = self._session(graph, where, shared)
        return Session(made, where, tuple(given), names, forms or {}, fixed or {}, shared)

    def _session(self, graph: onnx.GraphProto, where: str, shared: Mapping[str, Array]) -> Any:
        has_local = any((node.domain, node.op_type) in self._local for node in graph.node)
        is_blocked = any(node.domain == DOMAIN for node in graph.node)
        own = [helper.make_opsetid(DOMAIN, 1)] if is_blocked else []
        data = helper.make_model(
            graph,
            opset_imports=[*self._source.opset_import, *own],
            functions=self._source.functions if has_local else (),
            ir_version=self._source.ir_version,
        ).SerializeToString()
        if data in self._made and not shared:
            return self._made[data]
        try:
            made = new_session(data, shared=shared)
        except RunError:
            raise
        except Exception as error:
            raise RunError(f"onnxruntime does not take {where}: {error}") from error
        if not shared:
            self._made[data] = made
        return made


def _names(
    given: Iterable[str], nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]
) -> dict[str, str]:
    """Names that depend on the structure alone; those of the model where graphs are inside."""
    inside = (name for node in nodes for name in (*node.input, *node.output))
    all_names = filter(None, dict.fromkeys([*given, *inside, *outputs]))
    if any(item.type == AttributeProto.GRAPH for node in nodes for item in node.attribute):
        return {name: name for name in all_names}
    return dict(zip(all_names, (f"t{i}" for i in itertools.count()), strict=False))


def _nameless(node: onnx.NodeProto) -> onnx.NodeProto:
    node.name = node.doc_string = ""
    del node.metadata_props[:]
    return node


def _input(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, [None] * array.ndim)


def _constant(name: str, array: Array, is_shared: bool) -> onnx.TensorProto:
    if not is_shared:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    proto = TensorProto(name=name, data_type=kind, dims=array.shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "shared"), ("offset", "0"), ("length", str(array.nbytes))):
        proto.external_data.add(key=key, value=value)
    return proto
