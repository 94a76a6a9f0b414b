"""Lists on a command line: ``[a,b]``, ``['a','b']``, ``[[a,b],[c]]``, as a shell leaves them.

A shell takes the quotes away and parts a list at its blanks, so quotes are optional and the words
of one list are joined again. A name without quotes goes on to the next comma or bracket; brackets
within a name are part of it (``a[0]``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qtune.errors import ArgumentError

_QUOTES = "'\""


def read_list(text: str, *, nested: bool = False) -> Any:
    """A name, or the list that ``text`` writes down; ``None`` for ``None``.

    ``nested``: lists within the list are allowed. Raises ``ArgumentError`` quoting the text.

    >>> read_list("[Conv_2, '/a/b:0']"), read_list("Conv_2"), read_list("[[a,b],[c]]", nested=True)
    (['Conv_2', '/a/b:0'], 'Conv_2', [['a', 'b'], ['c']])
    """
    stripped = text.strip()
    if stripped in ("None", "none"):
        return None
    if not stripped:
        raise ArgumentError("the name is empty")
    if not stripped.startswith("["):
        return _unquoted(stripped)
    found, end = _Reader(stripped, nested).items(0)
    if end != len(stripped):
        raise _wrong(stripped, f"{stripped[end:]!r} stands behind the closing bracket")
    return found


def join_lists(words: Sequence[str]) -> list[str]:
    """``words`` with those of one list, which a shell parted at blanks, as one word again.

    A list begins with a ``[`` at the begin of a word, or behind the ``=`` of an option. One that is
    never closed stays as it is.
    """
    joined: list[str] = []
    index = 0
    while index < len(words):
        end = _end_of_list(words, index)
        joined.append(" ".join(words[index:end]))
        index = end
    return joined


def _end_of_list(words: Sequence[str], first: int) -> int:
    word = words[first]
    start = word.partition("=")[2] if word.startswith("--") else word
    if not start.startswith("["):
        return first + 1
    depth = 0
    for index in range(first, len(words)):
        depth += words[index].count("[") - words[index].count("]")
        if depth <= 0:
            return index + 1
    return first + 1


@dataclass(frozen=True, slots=True)
class _Reader:
    text: str
    nested: bool

    def items(self, start: int) -> tuple[list[Any], int]:
        """The items of the list whose ``[`` is at ``start``, and the place behind its ``]``."""
        found: list[Any] = []
        at = self._blank(start + 1)
        while self._char(at) != "]":
            item, at = self._item(at, start)
            found.append(item)
            at = self._blank(at)
            if self._char(at) == ",":
                at = self._blank(at + 1)
            elif self._char(at) != "]":
                raise _wrong(self.text, f"expected , or ] before {self.text[at:]!r}")
        return found, at + 1

    def _item(self, at: int, start: int) -> tuple[Any, int]:
        char = self._char(at)
        if char == "[":
            if not self.nested or start:
                raise _wrong(self.text, "the lists are nested too deep")
            return self.items(at)
        if char and char in _QUOTES:
            return self._quoted(at)
        end = self._end_of_name(at)
        name = self.text[at:end].strip()
        if not name:
            raise _wrong(self.text, "a name is missing")
        return name, end

    def _quoted(self, at: int) -> tuple[str, int]:
        end = self.text.find(self.text[at], at + 1)
        if end < 0:
            raise _wrong(self.text, f"the quote {self.text[at]} is never closed")
        if end == at + 1:
            raise _wrong(self.text, "a name is missing")
        return self.text[at + 1 : end], end + 1

    def _end_of_name(self, at: int) -> int:
        depth = 0
        while self._char(at) and not (depth == 0 and self._char(at) in ",]"):
            depth += {"[": 1, "]": -1}.get(self._char(at), 0)
            at += 1
        return at

    def _blank(self, at: int) -> int:
        while self._char(at).isspace():
            at += 1
        if at >= len(self.text):
            raise _wrong(self.text, "the bracket [ is never closed")
        return at

    def _char(self, at: int) -> str:
        return self.text[at : at + 1]


def _unquoted(name: str) -> str:
    if name[0] in _QUOTES and name[-1] == name[0] and len(name) > 2:
        return name[1:-1]
    return name


def _wrong(text: str, why: str) -> ArgumentError:
    return ArgumentError(f"can't read the list {text!r}: {why}; write it as [a,b] or ['a','b']")
