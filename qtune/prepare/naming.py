"""Names of operators: the module's path, or a generated one for functions."""

from __future__ import annotations

from collections import Counter

from torch import nn

from qtune.hbir.naming import unique_name


class Namer:
    """Gives names that are new in ``model`` (its modules, parameters and buffers)."""

    def __init__(self, model: nn.Module) -> None:
        self._taken = {name for name, _ in model.named_modules(remove_duplicate=False)}
        self._taken.update(name for name, _ in model.named_parameters(remove_duplicate=False))
        self._taken.update(name for name, _ in model.named_buffers(remove_duplicate=False))
        self._counts: Counter[str] = Counter()

    def generated(self, op: str) -> str:
        """``_generated_<op>_<n>``, counted per operator in order of execution."""
        return self.numbered(f"_generated_{op}_{{}}")

    def numbered(self, pattern: str) -> str:
        """``pattern`` with the next free number in its braces."""
        while True:
            name = pattern.format(self._counts[pattern])
            self._counts[pattern] += 1
            if name not in self._taken:
                self._taken.add(name)
                return name

    def unique(self, name: str) -> str:
        """``name``, or ``name_1`` and so on where it is taken."""
        new = unique_name(name, self._taken)
        self._taken.add(new)
        return new

    def release(self, name: str) -> None:
        """Make a name free again."""
        self._taken.discard(name)


def flat(path: str) -> str:
    """A path as one identifier: ``block.0.prelu`` -> ``block_0_prelu``."""
    return path.replace(".", "_")
