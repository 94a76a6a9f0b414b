"""Line numbers of the tables and keys of a TOML file, which the standard library does not keep.

Only for text that ``tomllib`` has read without an error: the scanner looks for keys, it judges
nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

Path = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}(?!")'
    r"|'''.*?'{3,5}(?!')"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'",
    re.S,
)


def key_lines(text: str) -> Mapping[Path, int]:
    """Line (from 1) of each key by its path, such as ``("check", 1, "min_cosine")``.

    Tables have the line of their header, tables that only dotted names make the line of the first
    of these.
    """
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a key, or of the nearest table around one that is not there."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}  # of arrays of tables, so far

    def document(self) -> None:
        table: Path = ()
        self._skip(_SPACE)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_SPACE)

    def _header(self) -> Path:
        """``[a.b]`` or ``[[a.b]]``; the path of the table that begins."""
        line, brackets = self._line(), 2 if self.text.startswith("[[", self.at) else 1
        self.at += brackets
        keys = self._keys()
        self._skip(_SPACE)
        self.at += brackets
        path = self._resolved(keys[:-1], (), line)
        if brackets == 2:
            whole = (*path, keys[-1])
            self._sizes[whole] = self._sizes.get(whole, 0) + 1
        return self._resolved(keys[-1:], path, line)

    def _resolved(self, keys: list[str], path: Path, line: int) -> Path:
        """The path of a table; in an array of tables that of its last one."""
        for key in keys:
            path = (*path, key)
            self.lines.setdefault(path, line)
            if path in self._sizes:
                path = (*path, self._sizes[path] - 1)
                self.lines.setdefault(path, line)
        return path

    def _pair(self, table: Path) -> None:
        """``a.b = value``."""
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self._skip(_SPACE)
        self.at += 1  # =
        self._value(path)

    def _keys(self) -> list[str]:
        found = []
        while True:
            self._skip(_SPACE)
            match = _BARE.match(self.text, self.at) or _STRING.match(self.text, self.at)
            if match is None:
                raise ValueError(f"no key at character {self.at}")
            self.at = match.end()
            word = match.group()
            quoted = word[0] in "\"'"
            found.append(tomllib.loads(f"key = {word}")["key"] if quoted else word)
            dot = _DOT.match(self.text, self.at)
            if dot is None:
                return found
            self.at = dot.end()

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        opening = self.text[self.at]
        if opening == "[":
            self._items(path, "]")
        elif opening == "{":
            self._items(path, "}")
        elif opening in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _items(self, path: Path, closing: str) -> None:
        """The values of an array, or the pairs of an inline table."""
        self.at += 1
        index = 0
        while True:
            self._skip(_SPACE)
            if self.text[self.at] == closing:
                self.at += 1
                return
            if closing == "}":
                self._pair(path)
            else:
                self.lines.setdefault((*path, index), self._line())
                self._value((*path, index))
                index += 1
            self._skip(_SPACE)
            self.at += self.text[self.at] == ","

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = self.at if match is None else match.end()

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1
