"""Convolutions in the runtime's blocked layout, with the reordered weights as inputs of a session.

onnxruntime computes most convolutions on blocks of channels and reorders constant weights for that
in every session anew, through several copies. Here a part's graph says the same from the start (the
runtime's own operators, as its optimizer writes them), so the reordered weights exist once, are
shared by all sessions and can be others in each run. Which layout the machine has is read from what
the optimizer makes of a small model; where that is none that we know, nothing is rewritten.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtune.bpu.ort import new_session
from qtune.onnx_debug.names import free_name

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

DOMAIN = "com.microsoft.nchwc"
_BLOCKS = (16, 8)
_LINE = 64  # bytes of a cache line, and of the widest vector
_ALIGNED = 4  # input channels that the runtime pads to whole blocks are a multiple of this
_UNUSUAL = ("dilations", "ceil_mode", "storage_order")  # of pooling
_WITH_SUM = 4  # inputs of a convolution that adds an image
_POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")


@dataclass(frozen=True, slots=True)
class Form:
    """How a session takes the weight ``source``.

    ``block``: channels of a block. ``is_inner``: the input channels are in blocks, too. A bias is
    filled up to whole blocks.
    """

    source: str
    block: int
    is_inner: bool = False

    def of(self, array: Array) -> Array:
        """``array`` in this form.

        A weight ``[out, in, h, w]`` as ``[out/b, in/b, h, w, b, b]`` or ``[out/b, in, h, w, 1,
        b]`` in memory, with the sizes of the former, which are filled up.
        """
        rest = -array.shape[0] % self.block
        if array.ndim == 1:
            return np.pad(array, (0, rest)) if rest else array
        inner = -array.shape[1] % self._step
        if rest or inner:
            array = np.pad(array, [(0, rest), (0, inner), (0, 0), (0, 0)])
        o, i, h, w = array.shape
        parts = array.reshape(o // self.block, self.block, i // self._step, self._step, h, w)
        made = aligned((o // self.block, i // self._step, h, w, self._step, self.block))
        made[...] = parts.transpose(0, 2, 4, 5, 3, 1)
        return made.reshape(o, i, h, w)

    def seen(self, array: Array) -> Array:
        """An array in this form with its blocks as sizes of their own."""
        if array.ndim == 1:
            return array
        o, i, h, w = array.shape
        return array.reshape(o // self.block, i // self._step, h, w, self._step, self.block)

    def scales(self, scales: Array, axis: int, rank: int) -> Array | None:
        """Scales along ``axis`` (-1 for one) as they broadcast on :meth:`seen` of an array."""
        if axis < 0:
            return scales.reshape(())
        if axis or rank == 1:
            return None
        filled = np.pad(scales, (0, -scales.size % self.block), constant_values=1)
        return filled.reshape(-1, 1, 1, 1, 1, self.block)

    @property
    def _step(self) -> int:
        return self.block if self.is_inner else 1


def aligned(shape: Shape) -> Array:
    """An empty float32 array that begins at a cache line, so that no vector lies in two of them."""
    size = 4 * math.prod(shape)
    room = np.empty(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return room[start : start + size].view(np.float32).reshape(shape)


@cache
def block_of_machine() -> int:
    """Channels of a block of onnxruntime's layout for convolutions on this machine; 0: none."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (24, 3, 3, 3), "w1": (40, 24, 1, 1), "w2": (32, 1, 3, 3)}
    weights = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Conv", ["a", "w1"], ["b"]),
        helper.make_node("Conv", ["z", "w2"], ["c"], group=32),
    ]
    inputs = [_image("x", 3), _image("z", 32)]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [_image("b", 40), _image("c", 32)], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made = _optimized(proto)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.initializer}
    found = [stored.get(n.input[1]) for n in made.node if (n.domain, n.op_type) == (DOMAIN, "Conv")]
    for block in _BLOCKS:
        forms = [Form("w0", block), Form("w1", block, is_inner=True), Form("w2", block)]
        expected = [form.of(weights[form.source]) for form in forms]
        if len(found) == 3 and all(any(_equal(e, f) for f in found) for e in expected):
            return block
    return 0


def _optimized(proto: onnx.ModelProto) -> onnx.GraphProto:
    """What the runtime's optimizer makes of ``proto``; nothing where there is no room for files."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimized.onnx"
            new_session(proto.SerializeToString(), optimized_to=path)
            return onnx.load(str(path)).graph
    except OSError:
        return onnx.GraphProto()


def _image(name: str, channels: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, channels, 8, 8))


def _equal(a: Array, b: Array | None) -> bool:
    return b is not None and np.array_equal(a, b)


@dataclass(slots=True)
class Rewriting:
    """The nodes of a part, rewritten one after another by :meth:`add`, then :meth:`end`.

    ``weights``: sizes of the float32 constants and of outputs of calibration nodes of such.
    ``channels``: of the part's inputs that are float32 images. ``shapes``: of tensors that are
    known to have these in each run, as far as whether two of them are equal. ``uses``: how often
    each is read, as an output of the part, too. ``taken``: all names. The result are ``nodes``,
    ``forms`` by input of the session, and ``fixed``: the channels that its other inputs must have.
    """

    weights: Mapping[str, Shape]
    channels: Mapping[str, int]
    shapes: Mapping[str, Shape]
    uses: Mapping[str, int]
    taken: set[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    forms: dict[str, Form] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    _blocked: dict[str, tuple[str, int]] = field(default_factory=dict)
    _plain: set[str] = field(default_factory=set)

    def add(self, node: onnx.NodeProto) -> None:
        """Take ``node``, in the blocked layout where that is possible."""
        kinds: dict[str, Callable[[onnx.NodeProto], bool]] = {
            "Conv": self._conv,
            "Relu": self._relu,
            "Add": self._sum,
            **dict.fromkeys(_POOLS, self._pool),
        }
        is_standard = node.domain in ("", "ai.onnx")
        if is_standard and node.op_type in kinds and kinds[node.op_type](node):
            return
        self._as_it_is(node)

    def end(self, outputs: Collection[str]) -> None:
        """Make the outputs of the part in the standard layout."""
        for name in outputs:
            self._need_plain(name)

    def _as_it_is(self, node: onnx.NodeProto) -> None:
        for name in node.input:
            self._need_plain(name)
        self.nodes.append(node)

    def _conv(self, node: onnx.NodeProto) -> bool:
        block = block_of_machine()
        x, weight, bias = (*node.input, "")[:3]
        shape = self.weights.get(weight, ())
        is_fit = len(shape) == 4 and (not bias or self.weights.get(bias) == shape[:1])
        if not block or not is_fit:
            return False
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        channels = self._blocked[x][1] if x in self._blocked else self.channels.get(x)
        out, inner = shape[:2]
        if channels is None or inner * groups != channels:
            return False
        is_depthwise = inner == 1 and out == groups and out % block == 0
        if groups > 1 and not is_depthwise:
            return False
        is_narrow = groups == 1 and channels < block and x not in self._blocked
        if not is_narrow and channels % _ALIGNED:
            return False
        if x in self.channels:
            self.fixed[x] = channels
        given = [
            x if is_narrow else self._need_blocked(x, channels),
            self._input(Form(weight, block, is_inner=groups == 1 and not is_narrow)),
            *([self._input(Form(bias, block))] if bias else []),
        ]
        made = self._new(node.output[0], out)
        self.nodes.append(_with(node, given, made, DOMAIN))
        return True

    def _relu(self, node: onnx.NodeProto) -> bool:
        x, y = node.input[0], node.output[0]
        if x not in self._blocked:
            return False
        before, channels = self._blocked[x]
        is_conv = self._is_conv_before(x)
        made = self._new(y, channels)
        if is_conv:
            last = self.nodes[-1]
            last.attribute.append(helper.make_attribute("activation", "Relu"))
            last.output[0] = made
        else:
            self.nodes.append(_with(node, [before], made))
        return True

    def _sum(self, node: onnx.NodeProto) -> bool:
        """Of two images of the same sizes."""
        known = {self.shapes.get(name) for name in node.input}
        if len(known) > 1 or None in known or all(n not in self._blocked for n in node.input):
            return False
        (shape,) = known
        if shape is None or len(shape) != 4 or shape[1] % _ALIGNED or min(shape[2:]) < 2:
            return False  # a size of 1 may be broadcast in another item
        for own, other in (node.input, node.input[::-1]):
            if self._is_conv_before(own) and len(self.nodes[-1].input) < _WITH_SUM:
                conv = self.nodes.pop()  # what it adds has to be there before
                other = self._need_blocked(other, shape[1])
                self.nodes.append(_adding(conv, other, self._new(node.output[0], shape[1])))
                return True
        given = [self._need_blocked(name, shape[1]) for name in node.input]
        self.nodes.append(_with(node, given, self._new(node.output[0], shape[1])))
        return True

    def _is_conv_before(self, name: str) -> bool:
        """Whether the last node is a convolution alone that makes ``name`` for one reader."""
        if not self.nodes or name not in self._blocked or name in self._plain:
            return False
        last = self.nodes[-1]
        is_conv = (last.domain, last.op_type) == (DOMAIN, "Conv")
        is_done = any(attribute.name == "activation" for attribute in last.attribute)
        is_made = last.output[0] == self._blocked[name][0] and self.uses.get(name) == 1
        return is_conv and is_made and not is_done

    def _pool(self, node: onnx.NodeProto) -> bool:
        x = node.input[0]
        others = [a for a in node.attribute if a.name in _UNUSUAL and helper.get_attribute_value(a)]
        if x not in self._blocked or len(node.output) > 1 or others:
            return False
        before, channels = self._blocked[x]
        made = self._new(node.output[0], channels)
        self.nodes.append(_with(node, [before], made, DOMAIN))
        return True

    def _input(self, form: Form) -> str:
        for name, known in self.forms.items():
            if known == form:
                return name
        name = self._name(form.source)
        self.forms[name] = form
        return name

    def _need_blocked(self, name: str, channels: int) -> str:
        if name not in self._blocked:
            self._plain.add(name)
            made = self._new(name, channels)
            self.nodes.append(helper.make_node("ReorderInput", [name], [made], domain=DOMAIN))
        return self._blocked[name][0]

    def _need_plain(self, name: str) -> None:
        if name in self._blocked and name not in self._plain:
            self._plain.add(name)
            before, channels = self._blocked[name]
            node = helper.make_node("ReorderOutput", [before], [name], domain=DOMAIN)
            node.attribute.append(helper.make_attribute("channels", channels))
            self.nodes.append(node)

    def _new(self, name: str, channels: int) -> str:
        made = self._name(name)
        self._blocked[name] = (made, channels)
        return made

    def _name(self, stem: str) -> str:
        name = free_name(f"{stem}_blocked", self.taken)
        self.taken.add(name)
        return name


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy with other names of those tensors that ``names`` has."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy


def _adding(conv: onnx.NodeProto, other: str, output: str) -> onnx.NodeProto:
    """``conv`` with an image that it adds to its result."""
    given = [*conv.input, *[""] * (3 - len(conv.input)), other]
    return _with(conv, given, output, DOMAIN)


def _with(
    node: onnx.NodeProto, inputs: Sequence[str], output: str, domain: str = ""
) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:], copy.output[:], copy.domain = inputs, [output], domain
    return copy
