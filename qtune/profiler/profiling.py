"""``ModelProfiler`` and ``HbirModelProfiler``: the numbers of every operator in a forward."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch
from torch import nn

from qtune.bpu.hbm import Program
from qtune.capture.graph import GraphModel
from qtune.errors import AnalysisError
from qtune.hbir.module import Function, HbirModule
from qtune.hbir.result import watched
from qtune.profiler.call_writer import CallWriter, ProfileWriter
from qtune.profiler.graph_calls import watch_graph
from qtune.profiler.hbir_calls import watch_function
from qtune.profiler.op_files import OP_INFOS, StoredOps
from qtune.profiler.plain_calls import plain_call
from qtune.profiler.running_info import OpRunningInfoManager
from qtune.quantizers.processes import own_rank, unwrapped

_CALLED = "_compiled_call_impl"
"""The attribute of a module that ``nn.Module.__call__`` looks at before it runs the forward."""

_Profiled = TypeVar("_Profiled")
CallContext = Callable[[], AbstractContextManager[CallWriter]]


class _Profiler(ABC, Generic[_Profiled]):
    """A ``with`` block around forwards of one model. Files go to ``out_dir``.

    Each process of ``torch.distributed`` runs forwards of its own: from the second on, files go to
    ``out_dir/rank1``, ``out_dir/rank2``, ...
    """

    def __init__(self, model: _Profiled, out_dir: str | os.PathLike[str]) -> None:
        self.model = model
        rank = own_rank()
        self.out_dir = Path(out_dir) / f"rank{rank}" if rank else Path(out_dir)
        self._block: ExitStack | None = None
        self._writer: ProfileWriter | None = None

    @property
    def get_info_manager(self) -> OpRunningInfoManager:
        """What the forwards in the block left; works with and without the call.

        ``AnalysisError`` before the block, and where no forward was finished in it.
        """
        where = type(self).__name__
        if self._writer is None:
            raise AnalysisError(
                f"{where} sees a model inside of its with block only: with {where}(model, "
                "out_dir) as p: model(data)"
            )
        if not self._writer.calls:
            raise AnalysisError(
                f"{where}: no forward of the model was finished in the with block; call the very "
                "object that was given to it, as in model(data), not model.forward(data)"
            )
        return OpRunningInfoManager(self.out_dir, StoredOps(self.out_dir / OP_INFOS))

    def __enter__(self) -> Self:
        if self._block is not None:
            raise AnalysisError(f"{type(self).__name__}: this profiler is in a with block already")
        writer = ProfileWriter(self.out_dir / OP_INFOS)
        with ExitStack() as stack:
            stack.enter_context(self._watching(writer.call))
            self._block = stack.pop_all()
        self._writer = writer
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.close()

    @abstractmethod
    def _watching(self, calls: CallContext) -> AbstractContextManager[None]:
        """Every forward of the model in the block becomes one of ``calls``."""


class ModelProfiler(_Profiler[nn.Module]):
    """See every operator of a torch model while it runs.

    ``with ModelProfiler(net, "./profiler_dir") as p: net(data)``, then
    ``p.get_info_manager().table()`` and ``.tensorboard()``. ``model``: a float model, one that
    ``prepare`` made, in any state, or a converted one. The forward is the user's own: it runs once,
    with its effects on state, gradients and random numbers, and gives its own result. Operators
    have the names of all stages. Several forwards in one block are kept one after the other, those
    of the second with ``@1`` behind the name; those of several threads run one after the other.
    Nothing stays on the model.

    Source: the tuning tool document, "ModelProfiler".
    """

    def __init__(self, model: nn.Module, out_dir: str | os.PathLike[str]) -> None:
        if isinstance(model, HbirModule):
            raise AnalysisError("ModelProfiler: this is an HBIR module; use HbirModelProfiler")
        if not isinstance(model, nn.Module):
            raise AnalysisError(
                f"ModelProfiler: expected a torch.nn.Module, got {type(model).__name__}"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise AnalysisError(
                "ModelProfiler: this is TorchScript, whose operators can't be seen; pass the "
                "Python model that it was made from"
            )
        if isinstance(getattr(model, "_orig_mod", None), nn.Module):
            raise AnalysisError(
                "ModelProfiler: this is what torch.compile returned, whose code runs no operators "
                "one by one; pass the model that was given to torch.compile, and call that"
            )
        super().__init__(model, out_dir)

    def _watching(self, calls: CallContext) -> AbstractContextManager[None]:
        model = unwrapped(self.model)
        if isinstance(model, GraphModel):
            _refuse_second(model, model._watch)
            return model.watched(watch_graph(model, calls))
        inner = [name for name, part in model.named_modules() if isinstance(part, GraphModel)]
        if inner:
            raise AnalysisError(
                f"ModelProfiler: {type(model).__name__} holds a prepared model at {inner[0]!r}; "
                f"pass that part itself: model.{inner[0]}"
            )
        lazy = [name for name, p in model.named_parameters() if torch.nn.parameter.is_lazy(p)]
        if lazy:
            raise AnalysisError(
                f"ModelProfiler: {lazy[0]} has no shape yet (a lazy module); run the model once "
                "first"
            )
        return _calls_of(model, calls)


class HbirModelProfiler(_Profiler[HbirModule]):
    """The same for HBIR modules (``.bc``, qat or quantized); call ``qat_hbir[0](data)``.

    An ``Hbm`` is refused: profile the module that it was compiled from.
    """

    def __init__(self, model: HbirModule, out_dir: str | os.PathLike[str]) -> None:
        if isinstance(model, Program):
            raise AnalysisError(
                "HbirModelProfiler: an Hbm is a compiled program; pass the .bc module that it was "
                "compiled from, which gives the same numbers"
            )
        if isinstance(model, Function):
            raise AnalysisError("HbirModelProfiler: pass the module, not its function module[0]")
        if not isinstance(model, HbirModule):
            raise AnalysisError(
                f"HbirModelProfiler: expected an HBIR module, got {type(model).__name__}; torch "
                "models have ModelProfiler"
            )
        super().__init__(model, out_dir)

    @contextmanager
    def _watching(self, calls: CallContext) -> Iterator[None]:
        with ExitStack() as stack:
            for function in self.model.functions:
                _refuse_second(function, function._watch)
                stack.enter_context(watched(function, watch_function(function, calls)))
            yield


@contextmanager
def _calls_of(model: nn.Module, calls: CallContext) -> Iterator[None]:
    """Every call of ``model`` in the block is seen; calls that it makes of itself are part of it.

    torch's ``nn.Module.__call__`` hands over to what ``compile`` left in the module's
    ``__dict__``; that is where a profiler steps in, so that the module's own hooks run inside.
    """
    state = vars(model)
    _refuse_second(model, state.get(_CALLED))
    forward: Any = model._call_impl
    running: set[int] = set()  # threads with a forward of the model

    def call(*args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in running:
            return forward(*args, **kwargs)
        running.add(thread)
        try:
            with plain_call(model, calls, args, kwargs):
                return forward(*args, **kwargs)
        finally:
            running.discard(thread)

    state[_CALLED] = call
    try:
        yield
    finally:
        del state[_CALLED]


def _refuse_second(model: Any, watch: Any) -> None:
    if watch is not None:
        raise AnalysisError(
            f"this {type(model).__name__} is in the block of another profiler (or compiled with "
            "model.compile()); profile it once, as it was before compile"
        )
