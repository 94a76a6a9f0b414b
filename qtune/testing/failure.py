"""An exception in one line: what went wrong, and where in the user's own code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from qtune.errors import QtuneError

_OURS = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
)


def one_line(error: BaseException) -> str:
    """The message of an error of ours as it is; of any other with its type and place."""
    text = _compact("\n".join([str(error), *getattr(error, "__notes__", ())]))
    if isinstance(error, QtuneError):
        return text
    kind = type(error).__name__
    place = user_place(error)
    return f"{kind}: {text}" + (f" ({place})" if place else "")


def user_place(error: BaseException) -> str:
    """The innermost frame in the user's own files, such as ``net.py:12, in forward``."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    if not own:
        return ""
    last = own[-1]
    return f"{Path(last.filename).name}:{last.lineno}, in {last.name}"


def _is_users(name: str) -> bool:
    if name.startswith("<"):
        return False
    path = Path(name).resolve()
    return not any(path.is_relative_to(folder) for folder in (_OURS, *_LIBRARIES))


def _compact(text: str) -> str:
    """All lines of ``text`` in one."""
    return " ".join(text.split()) or "no message"
