"""Further branches for a recorded float model, from the calls that no branch fits yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.capture.nodes import tensors_in
from qtune.capture.restore import Restorer
from qtune.capture.union import join
from qtune.errors import CaptureError, GuardError

if TYPE_CHECKING:
    from qtune.capture.graph import GraphModel

MOST_BRANCHES = 16
"""A model that takes another path for every size would grow without end."""


class Growth:
    """Keeps the float model that a recording shares its modules with, and the recordings.

    ``record``: makes the recording of one example.
    """

    def __init__(
        self,
        model: nn.Module,
        recordings: list[GraphModel],
        record: Callable[[Inputs], GraphModel],
    ) -> None:
        self.model = model
        self._recordings = [_same(recording) for recording in recordings]
        self._record = record

    def watch(self, recorded: nn.Module, args: Any, kwargs: Any) -> Attempt:
        """To be asked for before a call that may fail."""
        return Attempt(Restorer(recorded), list(tensors_in((args, kwargs))))

    def another(
        self, error: GuardError, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
    ) -> GraphModel:
        """The recorded model with a branch for this call, which ended with ``error``.

        Raises ``GuardError`` where there can be none.
        """
        if len(self._recordings) >= MOST_BRANCHES:
            raise GuardError(
                f"{error}\nThe recorded model has {MOST_BRANCHES} branches already, and records "
                "no more: each call seems to take another path"
            ) from None
        flag, self.model.training = self.model.training, training
        try:
            recording = self._record(Inputs(*args, **kwargs))
        except CaptureError as reason:
            raise GuardError(f"{error}\nRecording this call as well failed: {reason}") from reason
        finally:
            self.model.training = flag
        joined = join(self.model, [*self._recordings, recording])
        if len(joined.graph_branches) != len(self._recordings) + 1:
            raise error
        self._recordings.append(recording)
        return joined


def _same(recording: GraphModel) -> GraphModel:
    """Another object for the recording: the recorded model itself takes branches over."""
    copy = recording.__class__.__new__(recording.__class__)
    copy.__dict__ = dict(recording.__dict__)
    return copy


class Attempt:
    """One call that may fail half-way: what it changed can be undone."""

    def __init__(self, restorer: Restorer, inputs: list[Tensor]) -> None:
        self._restorer = restorer
        self._inputs = [(tensor, _version(tensor)) for tensor in inputs]

    def undo(self) -> bool:
        """Undo it; ``False`` if inputs were changed in place, which can't be undone."""
        self._restorer.restore()
        return all(_version(tensor) == version for tensor, version in self._inputs)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
