"""PrepareMethod.SYMBOLIC: what torch.fx finds out about a model before it is recorded.

torch.fx must be able to trace the model, which rules out control flow on inputs: what is recorded
then holds for all inputs. Example inputs need not be given: the traced layers tell the ranks and
the channels that they take, and sizes are tried on tensors without data until the graph runs.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs, as_example_list
from qtune.capture.interface import bind, call_arguments, signature_of
from qtune.capture.members import attribute_at
from qtune.capture.program import Program
from qtune.capture.restore import restored
from qtune.capture.structure import flatten, flatten_named
from qtune.capture.symbolic import capture_symbolic
from qtune.errors import CaptureError
from qtune.ops.registry import find_function

_log = logging.getLogger(__name__)

SIZES = (64, 32, 28, 224, 128, 256, 96, 48, 112, 160, 192, 299, 320, 384, 416, 512, 640, 16, 8)
"""Heights, widths and lengths that are tried, in this order."""

_BATCHES = (2, 1)
_LENGTH = 8
"""Steps of a sequence."""

_DIVISIBLE = 144
"""Channels that pixel_shuffle, channel_shuffle and glu take, by factors up to 4."""

_SIZE = -1
"""Stands for a size to be tried in the templates below."""

_MOST_COMBINATIONS = 32

Template = tuple[tuple[int, ...], torch.dtype]
"""The sizes behind the batch, and the dtype."""


def symbolic_example(model: nn.Module, example_inputs: Any) -> Any:
    """The calls to record: ``example_inputs``, or one that torch.fx's trace of ``model`` can run.

    Raises ``CaptureError`` where torch.fx can't trace the model, or where none is found.
    """
    signature = signature_of(model)
    if example_inputs is not None:
        for given in as_example_list(example_inputs):
            capture_symbolic(model, arguments=bind(signature, given.args, given.kwargs))
        return example_inputs
    found = find_example(model, _open_arguments(signature))
    texts = [f"{name} {list(value.shape)}" for name, value in _named_tensors(signature, found)]
    _log.info("prepare: no example inputs; recorded on %s", ", ".join(texts))
    return found


def find_example(
    model: nn.Module, arguments: Mapping[str, Any], sizes: Sequence[int] = SIZES
) -> Inputs:
    """A call that ``model`` can run, of the form of ``arguments`` (by name, nested).

    The tensors in ``arguments`` stand for tensors of any kind, everything else is as given.
    ``sizes``: heights, widths and lengths to try, in this order.
    """
    traced = capture_symbolic(model, arguments=arguments)
    values = iter(_search(model, traced, sizes))
    leaves, spec = flatten(dict(arguments))
    filled = [next(values) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = call_arguments(signature_of(model), filled, spec)
    return Inputs(*args, **kwargs)


def _named_tensors(signature: inspect.Signature, call: Inputs) -> list[tuple[str, Tensor]]:
    pairs = flatten_named(bind(signature, call.args, call.kwargs))
    return [(name, value) for name, value in pairs if isinstance(value, Tensor)]


def _open_arguments(signature: inspect.Signature) -> dict[str, Any]:
    """Every argument by name: a tensor where it has no default."""
    empty: Mapping[Any, Any] = {
        inspect.Parameter.VAR_POSITIONAL: (),
        inspect.Parameter.VAR_KEYWORD: {},
    }
    found: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        is_open = parameter.default is inspect.Parameter.empty
        found[name] = empty.get(parameter.kind, torch.empty(0) if is_open else parameter.default)
    return found


def _search(model: nn.Module, traced: GraphModel, sizes: Sequence[int]) -> list[Tensor]:
    """Tensors for the inputs of ``traced`` that it runs on."""
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    choices = [_templates(traced, node) for node in inputs]
    combinations = list(itertools.islice(itertools.product(*choices), _MOST_COMBINATIONS))
    floating, problem = _floating(model), "it takes no tensor"
    with restored(model), torch.no_grad():
        for batch, size, combination in itertools.product(_BATCHES, sizes, combinations):
            shapes = [
                ((batch, *_sized(given, size)), floating if dtype.is_floating_point else dtype)
                for given, dtype in combination
            ]
            failure = _failure(traced, shapes)
            if failure is None:
                return [_tensor(shape, dtype, _device(model)) for shape, dtype in shapes]
            problem = failure
    names = ", ".join(str(node.target) for node in inputs)
    raise CaptureError(
        f"{type(model).__name__}: no sizes were found that its forward takes ({names}; the last "
        f"try failed with {problem}). Give example_inputs"
    )


def _sized(sizes: Sequence[int], size: int) -> tuple[int, ...]:
    return tuple(size if item == _SIZE else item for item in sizes)


def _failure(traced: GraphModel, shapes: Sequence[tuple[tuple[int, ...], Any]]) -> str | None:
    """Why the graph doesn't run on tensors of these shapes; it runs without data."""
    device = _device(traced)
    try:
        with _quiet(), FakeTensorMode(allow_non_fake_inputs=True):
            leaves = [torch.zeros(s, dtype=d, device=device) for s, d in shapes]
            Program(traced.graph, traced).run(leaves)
    except Exception as error:  # whatever the model's own code raises on sizes it can't take
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs every call that fails on tensors without data, and warns; here that is a try."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device=device)
    source = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=source, dtype=dtype).to(device)


def _floating(model: nn.Module) -> torch.dtype:
    """The dtype that the model computes in."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)


def _device(model: nn.Module) -> torch.device:
    tensor = next(itertools.chain(model.parameters(), model.buffers()), torch.empty(0))
    return tensor.device


def _templates(traced: GraphModel, node: fx.Node) -> list[Template]:
    """What the input may look like, by the first layers that take it."""
    found: dict[Template, None] = {}
    waiting, seen = [node], {node}
    while waiting:
        for user in list(waiting.pop(0).users):
            if user in seen:
                continue
            seen.add(user)
            hints = list(_hints(traced, user))
            found.update(dict.fromkeys(hints))
            if not hints and not _reshapes(user):
                waiting.append(user)
    return list(found) or [(sizes, torch.float32) for sizes in _UNKNOWN]


_UNKNOWN = (
    (3, _SIZE, _SIZE),
    (_SIZE,),
    (_LENGTH, _SIZE),
    (1, _SIZE, _SIZE),
    (_DIVISIBLE, _SIZE, _SIZE),
)


def _hints(traced: GraphModel, node: fx.Node) -> Iterator[Template]:
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        for attribute, sizes_of in _BY_ATTRIBUTE.items():
            if hasattr(module, attribute):
                yield from sizes_of(module)
                return
    elif node.op == "call_function":
        yield from _function_hints(traced, node)


def _function_hints(traced: GraphModel, node: fx.Node) -> Iterator[Template]:
    """A function of the registry with a weight that the model owns (``F.conv2d``)."""
    found = find_function(node.target)
    spec = None if found is None else found[0]
    if spec is None or spec.weight_role is None or len(node.args) < 2:
        return
    weight = node.args[1]
    if not isinstance(weight, fx.Node) or weight.op != "get_attr":
        return
    shape = tuple(attribute_at(traced, str(weight.target).split(".")).shape)
    groups = node.kwargs.get("groups", node.args[6] if len(node.args) > 6 else 1)
    channels = shape[1] * (groups if isinstance(groups, int) else 1)
    yield from _images(channels, len(shape) - 2) if len(shape) > 2 else _features(shape[1])


def _images(channels: int, dims: int) -> Iterator[Template]:
    yield (channels, *[_SIZE] * dims), torch.float32


def _features(*sizes: int) -> Iterator[Template]:
    yield tuple(sizes), torch.float32
    yield (_LENGTH, *sizes), torch.float32


def _normalized(channels: int) -> Iterator[Template]:
    for dims in (2, 0, 1, 3):
        yield from _images(channels, dims)


def _indices(module: Any) -> Iterator[Template]:
    yield (_LENGTH,), torch.int64
    yield (), torch.int64


_BY_ATTRIBUTE: Mapping[str, Callable[[Any], Iterator[Template]]] = MappingProxyType(
    {
        "in_channels": lambda m: _images(m.in_channels, len(m.kernel_size)),
        "in_features": lambda m: _features(m.in_features),
        "num_features": lambda m: _normalized(m.num_features),
        "num_parameters": lambda m: _normalized(m.num_parameters),
        "num_channels": lambda m: _normalized(m.num_channels),
        "normalized_shape": lambda m: _features(*m.normalized_shape),
        "num_embeddings": _indices,
        "input_size": lambda m: _features(m.input_size),
        "embed_dim": lambda m: _features(m.embed_dim),
    }
)
"""What torch's layers take, by the attribute that tells it."""


def _reshapes(node: fx.Node) -> bool:
    """Whether ranks or channels may be others behind the call."""
    name = str(getattr(node.target, "__name__", node.target)).rpartition(".")[2]
    return name in _RESHAPING


_RESHAPING = frozenset(
    {"view", "reshape", "flatten", "permute", "transpose", "unsqueeze", "squeeze", "getitem"}
    | {"getattr", "size", "dim", "cat", "stack", "chunk", "split", "unbind", "expand", "repeat"}
)
