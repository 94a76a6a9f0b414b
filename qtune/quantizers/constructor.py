"""A class with some of its arguments: what ``with_args`` returns and a qconfig holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Constructor:
    """Calls ``cls`` with ``arguments``, over which those of the call win. Compares and pickles."""

    cls: type
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build one object."""
        return self.cls(*args, **{**self.arguments, **kwargs})

    def with_args(self, **kwargs: Any) -> Constructor:
        """A constructor with further or other arguments."""
        return Constructor(self.cls, {**self.arguments, **kwargs})

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"{self.cls.__name__}.with_args({given})"


def _short(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
