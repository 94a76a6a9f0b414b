"""The outside of a recorded graph: how a call's arguments become the graph's inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.guards import same
from qtune.capture.nodes import map_leaves, tensors_in
from qtune.capture.sizes import is_symbol
from qtune.capture.structure import Spec, flatten, leaf_names, unflatten
from qtune.errors import CaptureError, GuardError


@dataclass(frozen=True, slots=True)
class Interface:
    """``in_spec``: structure of the bound arguments by name, ``None`` where each argument is one
    input whatever it holds (symbolic tracing). ``out_spec``: structure of the result.
    ``signature``: of the model's forward, without annotations. ``constants``: the inputs that are
    no tensors, by their place among the leaves; other values are refused.
    """

    in_spec: Spec | None
    out_spec: Spec
    signature: inspect.Signature
    constants: Mapping[int, Any] = field(default_factory=dict)

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The graph's inputs for one call. Raises ``GuardError`` if it isn't like the example."""
        bound = bind(self.signature, args, kwargs)
        if self.in_spec is None:
            return list(bound.values())
        leaves, spec = flatten(bound)
        if spec != self.in_spec:
            raise GuardError(
                f"the inputs have the structure {spec}, recorded was {self.in_spec}. Pass the same "
                "arguments as the example, or record an example of this form too "
                "(example_inputs=[first, qtune.Inputs(...)])"
            )
        for place, leaf in enumerate(leaves):
            if place in self.constants:
                self._check(place, leaf, self.constants[place])
            elif not isinstance(leaf, Tensor):
                raise GuardError(
                    f"input {self._name(place)!r} is {type(leaf).__module__}."
                    f"{type(leaf).__name__}; a torch.Tensor was recorded and is expected. "
                    "Pass a tensor (torch.from_numpy(x), torch.tensor(x))"
                )
        return [leaf for place, leaf in enumerate(leaves) if place not in self.constants]

    def _check(self, place: int, leaf: Any, expected: Any) -> None:
        if leaf is not expected and not same(leaf, expected):
            raise GuardError(
                f"guard: input {self._name(place)!r} was {expected!r} when the model was recorded, "
                f"now it is {leaf!r}: the model may take another path. Record an example with it "
                "too (example_inputs=[first, qtune.Inputs(...)])"
            )

    def _name(self, place: int) -> str:
        return leaf_names(self.in_spec)[place] if self.in_spec is not None else str(place)


def signature_of(model: nn.Module) -> inspect.Signature:
    """The signature of the model's forward, without annotations (they may not pickle)."""
    signature = inspect.signature(model.forward)
    parameters = [
        p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()
    ]
    return inspect.Signature(parameters)


def bind(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of a call by name, defaults included. Raises ``TypeError`` as a call would."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def call_arguments(
    signature: inspect.Signature, leaves: Sequence[Any], spec: Spec
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``args`` and ``kwargs`` of the call whose bound arguments have these leaves."""
    bound = inspect.BoundArguments(signature, unflatten(leaves, spec))
    return bound.args, bound.kwargs


def call_as_given(
    signature: inspect.Signature,
    leaves: Sequence[Any],
    spec: Spec,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call ``(*args, **kwargs)`` with these leaves of its bound arguments.

    By position and by name as there, without the defaults: a decorator of forward that takes
    ``*args, **kwargs`` may tell them apart.
    """
    bound = unflatten(leaves, spec)
    call = signature.bind_partial(*args, **kwargs)
    call.arguments.update((name, bound[name]) for name in call.arguments)
    by_name = {name: bound[name] for name in kwargs if _is_one(signature.parameters.get(name))}
    rest = inspect.BoundArguments(
        signature, {k: v for k, v in call.arguments.items() if k not in by_name}
    )
    return rest.args, {**by_name, **rest.kwargs}


def refuse_opaque(place: str, value: Any) -> None:
    """Raise ``CaptureError`` for an object of a class that can't be looked into, if it holds
    tensors: their values would be frozen.
    """
    if isinstance(value, Iterator):
        raise CaptureError(
            f"{place} is an iterator ({type(value).__name__}), which can be used only once; "
            "use a tuple or a list"
        )
    inside = _inside(value)
    sizes: list[Any] = []
    map_leaves(inside, lambda item: sizes.append(item) if is_symbol(item) else item)
    if sizes or next(tensors_in(inside), None) is not None:
        raise CaptureError(
            f"{place} is a {type(value).__name__} that holds tensors or sizes; recording can't "
            "look into that class. Use a tensor, tuple, list, dict, namedtuple or dataclass"
        )


def _is_one(parameter: inspect.Parameter | None) -> bool:
    """Whether the name of an argument means this parameter, not one that takes all the rest."""
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter is not None and parameter.kind not in rest


def _inside(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, type | torch.dtype) or callable(value):
        return None
    attributes = getattr(value, "__dict__", {})
    return [attributes, *(getattr(item, "__dict__", None) for item in attributes.values())]
