"""``qtune.testing.objects`` for the command line: what can't be loaded is an ``InputError``."""

from __future__ import annotations

from typing import Any

from qtune.cli.outcome import InputError
from qtune.testing import objects


def load_object(spec: str, option: str, example: str = "nets.py:make") -> Any:
    """The object that ``spec`` names, looked for in the current directory first."""
    return objects.load_object(spec, option, example, error=InputError)


def called(value: Any, spec: str, option: str) -> Any:
    """What the callable ``value`` returns; ``InputError`` naming the line where it raised."""
    return objects.called(value, spec, option, error=InputError)


def load_setter(spec: str, option: str) -> Any:
    """The qconfig setter that ``spec`` names, or that the callable of that name makes."""
    return objects.load_setter(spec, option, error=InputError)
