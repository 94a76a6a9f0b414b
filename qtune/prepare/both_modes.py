"""Records what prepare needs of a model that reads ``self.training``: both of its modes.

QAT runs a model in training mode that was recorded in eval mode. Where forward reads ``training``
in Python (``dropout_p=p if self.training else 0.``, stochastic depth) the other mode is another
path, which is recorded as a branch *aside*: it uses the operators of the eval branch, and what only
training has stays float and unseen by fusion, dtypes and scales. A training path that has layers or
results of its own is not added: what becomes of those is for the user to say, by an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import fx, nn

from qtune.capture.branches import ASIDE, BRANCHES, CALL
from qtune.capture.graph import GraphModel
from qtune.capture.guards import needs_mode
from qtune.capture.identity import target_name
from qtune.capture.inputs import Inputs
from qtune.capture.members import attribute_at
from qtune.capture.recorder import capture
from qtune.capture.union import join
from qtune.errors import QtuneError
from qtune.ops import registry
from qtune.ops.spec import FuseRole, OpSpec
from qtune.prepare.constants import depends_on_data

_MODES = {False: "eval", True: "training"}
_MAIN, _ASIDE = 0, 1


def capture_for_qat(model: nn.Module, examples: Sequence[Inputs]) -> GraphModel:
    """The recording of ``examples``, with the other mode of each that reads ``training``.

    Nothing is added where an example names a mode (``Inputs.in_mode``), or where training has more
    to it than the eval branch; ``why_one_mode`` of the result then says why. The branches of the
    eval mode come first, those aside last.
    """
    given = [capture(model, example, fixed=True) for example in examples]
    if any(example.training is not None for example in examples):
        return join(model, given)
    main: list[GraphModel] = []
    aside: list[GraphModel] = []
    reasons: dict[str, None] = {}
    for example, recording in zip(examples, given, strict=True):
        pair = _pair(model, example, recording)
        if isinstance(pair, str):
            reasons[pair] = None
        main.append(recording if isinstance(pair, str) else pair[_MAIN])
        aside += [] if isinstance(pair, str) else pair[_ASIDE:]
    try:
        joined = _mark(join(model, [*main, *aside]), len(main))
    except QtuneError as error:
        if not aside:
            raise
        joined, reasons = join(model, given), {str(error): None}
    joined.why_one_mode = "; ".join(filter(None, reasons))
    return joined


def _pair(model: nn.Module, example: Inputs, recording: GraphModel) -> tuple[GraphModel, ...] | str:
    """The recordings in eval and in training mode; the reason why there is only the given one."""
    if all(needs_mode(node) is None for node in recording.graph.nodes):
        return ""
    other = not model.training
    try:
        twin = capture(model, example.in_mode(training=other), fixed=True)
        pair = (recording, twin) if other else (twin, recording)
        joined = join(model, pair)
    except QtuneError as error:
        return f"in {_MODES[other]} mode, {error}"
    if not joined.graph_branches:
        return (recording,)
    return _Comparison(joined, pair).cost() or pair


def _mark(joined: GraphModel, count: int) -> GraphModel:
    """Note which of the branches, and of the nodes, are aside: all but the first ``count``."""
    joined.graph_branches = tuple(
        replace(branch, aside=branch.number >= count) for branch in joined.graph_branches
    )
    for node in joined.graph.nodes:
        if all(number >= count for number in node.meta.get(BRANCHES, (_MAIN,))):
            node.meta[ASIDE] = True
    return joined


class _Comparison:
    """What training does beyond the eval branch of the same example."""

    def __init__(self, joined: GraphModel, pair: Sequence[GraphModel]) -> None:
        self._model = joined
        self._pair = pair
        nodes = list(joined.graph.nodes)
        self._main = [n for n in nodes if _MAIN in n.meta.get(BRANCHES, ())]
        self._extra = [n for n in nodes if n.meta.get(BRANCHES) == (_ASIDE,)]
        self._partners = {_identity(n): n for n in reversed(self._main) if _is_call(n)}

    def cost(self) -> str:
        """Why the training branch can't be added beside the other one; ``""`` if it can."""
        owned = {id(value) for node in self._main for _, value in self._parameters(node)}
        for node in self._extra:
            for name, value in self._parameters(node):
                if id(value) not in owned:
                    return f"training mode uses `{name}` ({node.meta.get('source')}), eval does not"
        new = [n for n in self._extra if _is_call(n) and _identity(n) not in self._partners]
        if any(map(depends_on_data, new)) and _result(self._pair[0]) != _result(self._pair[1]):
            where = next(n.meta.get("source") for n in new if depends_on_data(n))
            return f"training mode computes another result than eval mode ({where})"
        for node in self._extra:
            partner = self._partners.get(_identity(node))
            if partner is not None and self._is_torn(node, partner):
                return (
                    f"in training mode something comes between a layer and its norm "
                    f"({node.meta.get('source')})"
                )
        return ""

    def _parameters(self, node: fx.Node) -> Iterator[tuple[str, Any]]:
        """The parameters that a node reads or whose layer it calls."""
        target = str(node.target)
        if node.op == "get_attr":
            value = attribute_at(self._model, target.split("."))
            if isinstance(value, nn.Parameter):
                yield target, value
        elif node.op == "call_module":
            layer = self._model.get_submodule(target)
            yield from ((f"{target}.{name}", value) for name, value in layer.named_parameters())

    def _is_torn(self, node: fx.Node, partner: fx.Node) -> bool:
        """Whether a batch norm that may be folded normalizes something else in training mode."""
        if self._role(partner) is not FuseRole.BN:
            return False
        ours, theirs = node.args[0], partner.args[0]
        if not isinstance(ours, fx.Node) or not isinstance(theirs, fx.Node):
            return True
        return ours is not theirs and _identity(ours) != _identity(theirs)

    def _role(self, node: fx.Node) -> FuseRole | None:
        spec: OpSpec | None = None
        if node.op == "call_module":
            found: Any = registry.find_module(type(self._model.get_submodule(str(node.target))))
        elif node.op == "call_method":
            found = registry.find_method(str(node.target))
        else:
            found = registry.find_function(node.target)
        spec = found[0] if found is not None else None
        return None if spec is None else spec.fuse


def _is_call(node: fx.Node) -> bool:
    calls = ("call_module", "call_function", "call_method")
    return node.op in calls and node.meta.get("kind") == "op"


def _identity(node: fx.Node) -> Any:
    """Equal for calls that are one operator: of one layer, with its parameters, or of one line."""
    if node.op == "call_module":
        return ("module", node.target)
    scope = node.meta.get("scope", "")
    read = (n.target for n in node.all_input_nodes if n.op == "get_attr")
    if scope and any(str(target).rpartition(".")[0] == scope for target in read):
        return (target_name(node.target), scope)
    return ("call", node.meta.get(CALL, node))


def _result(recording: GraphModel) -> tuple[Any, list[Any]]:
    """Structure and shapes of what a recording returns."""
    (output,) = recording.graph.find_nodes(op="output")
    leaves: Any = output.args[0]
    shapes = [leaf.meta.get("shape") if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    return recording.out_spec, shapes
