"""Words of messages."""

from __future__ import annotations


def counted(count: float | str, noun: str) -> str:
    """A number with its noun; one that was written out already stays as it is.

    >>> counted(1, "step"), counted("2.5", "step"), counted(0, "bad layer")
    ('1 step', '2.5 steps', '0 bad layers')
    """
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"
