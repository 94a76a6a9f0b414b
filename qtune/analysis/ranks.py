"""Several processes of ``torch.distributed`` that work on one analysis (tuning tool document).

Each searches its share of the data and ranks its share of the stubs; what one of them found all of
them get, so that every process returns the same values. Files are written by the first process,
into a folder that all processes see.
"""

from __future__ import annotations

import contextlib
import datetime
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from qtune.errors import AnalysisError
from qtune.quantizers.processes import in_several_processes

T = TypeVar("T")

MEETING = datetime.timedelta(minutes=30)
"""How long a process waits for the others when an analysis is made."""
PATIENCE = datetime.timedelta(days=1)
"""How long a process waits for the others, then, which may search or tune for hours."""
_END = "end"


class OtherProcessError(AnalysisError):
    """A step ends in all processes because of another one, and all of them know."""


@dataclass(frozen=True, slots=True)
class _Message:
    """What a process says when it meets the others: where it is, what it has, or what failed."""

    where: str
    part: str
    value: bytes
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ``count`` ones that share the work of an analysis.

    ``group``: through which they talk, on the CPU and with a patience of its own: that of the
    user's group (10 minutes with NCCL) is meant for training steps.
    """

    rank: int = 0
    count: int = 1
    group: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def here(cls) -> Ranks:
        """The processes of the default group of ``torch.distributed``, this one alone without.

        All of them must call this.
        """
        if not in_several_processes():
            return cls()
        try:
            group = dist.new_group(backend="gloo", timeout=MEETING)
        except RuntimeError as error:
            raise AnalysisError(
                f"QuantAnalysis: the other processes did not come within {MEETING}; create it in "
                f"all processes of torch.distributed ({error})"
            ) from error
        group.set_timeout(PATIENCE)
        return cls(dist.get_rank(), dist.get_world_size(), group)

    @property
    def are_several(self) -> bool:
        """Whether there is anyone to share with."""
        return self.count > 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def index(self, step: int) -> int:
        """Number of this process's ``step``-th item in the data of all processes.

        That is its place in the data set with a ``DistributedSampler(shuffle=False)`` and batches
        of one.
        """
        return step * self.count + self.rank

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The part of ``items`` that is this process's work.

        Dealt out to and fro (0 1 2 2 1 0): a port's cost falls along the graph, and outputs and
        weights, which cost differently, take turns.
        """
        turns = [*range(self.count), *reversed(range(self.count))]
        return [items[i] for i in range(len(items)) if turns[i % len(turns)] == self.rank]

    @contextmanager
    def step(self, where: str) -> Iterator[None]:
        """A block that all processes run, and that ends in all of them with an error if one fails.

        Who fails says so the next time the others wait, at the end of the block at the latest, and
        raises its own error; the others raise ``AnalysisError`` that names the process and its
        error. So none waits for ever, and the next step begins in all alike. A process that is in
        another step is an ``AnalysisError``, too.
        """
        if not self.are_several:
            if in_several_processes():
                raise AnalysisError(
                    f"{where}: this QuantAnalysis was made before init_process_group and would do "
                    "the whole work in every process; make it afterwards"
                )
            yield
            return
        try:
            yield
        except OtherProcessError:
            raise
        except BaseException as error:
            with contextlib.suppress(OtherProcessError):  # this one's own error says more
                self._meet(_Message(where, _END, b"", f"{type(error).__name__}: {error}"))
            raise
        self._meet(_Message(where, _END, b""))

    def everywhere(self, where: str, value: T) -> list[T]:
        """The ``value`` of each process, by rank. In a :meth:`step` only."""
        if not self.are_several:
            return [value]
        met = self._meet(_Message(where, "everywhere", _packed(where, value)))
        return [
            value if rank == self.rank else pickle.loads(message.value)
            for rank, message in enumerate(met)
        ]

    def on_first(self, where: str, work: Callable[[], T]) -> T:
        """What ``work()`` gives in the first process, which alone does it; all get it.

        In a :meth:`step` only. It must live on the CPU.
        """
        if not self.are_several:
            return work()
        value = work() if self.is_first else None
        sent: list[Any] = [_packed(where, value)]
        self._meet(_Message(where, "on_first", b""))  # where an error of the first ends the step
        dist.broadcast_object_list(sent, src=0, group=self.group, device=torch.device("cpu"))
        return cast(T, value if self.is_first else pickle.loads(sent[0]))

    def _meet(self, message: _Message) -> list[_Message]:
        """The messages of all processes; raises in all of them unless all is well."""
        met: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(met, message, group=self.group)
        except (RuntimeError, ValueError) as error:  # gone, or the group is destroyed
            raise OtherProcessError(
                f"{message.where}: the other processes don't answer; has one of them ended, or was "
                f"this not called in all of them? ({error})"
            ) from error
        for rank, other in enumerate(met):
            if other.error is not None:
                raise OtherProcessError(
                    f"{message.where}: process {rank} failed, so all stop. There: {other.error}"
                )
        if len({(other.where, other.part) for other in met}) > 1:
            places = ", ".join(f"{other.where} in process {r}" for r, other in enumerate(met))
            raise OtherProcessError(
                f"the processes are not at the same place: {places}; call every method of "
                "QuantAnalysis in all processes, in the same order and with the same arguments"
            )
        return met


def _packed(where: str, value: Any) -> bytes:
    """The bytes of ``value``, made before the others wait for them."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AnalysisError(
            f"{where}: the other processes need this value, which can't be pickled: {error}"
        ) from error


ALONE = Ranks()
"""One process, which does everything."""
