"""Inputs and outputs of a function: what they are, and the operators that can be put on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import onnx_ir as ir

from qtune.errors import ArgumentError, HbirError
from qtune.hbir.builder import META_DTYPE, META_SCALE
from qtune.hbir.operation import Operation

if TYPE_CHECKING:
    from qtune.hbir.module import Function

META_REMOVED = "qtune.removed_io_scales"
"""Of the file: argument -> its scale (a list: one per channel), JSON, after remove_io_op."""

Kind = Literal["inputs", "outputs"]


class Removal(NamedTuple):
    """Whether something can be (or was) removed, and why not; true where it can."""

    removed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.removed


class Argument:
    """An input or output of a function; ``dtype`` is its name in torch, such as ``float32``.

    The methods ``insert_*``, ``remove_attached_op`` and ``erase`` change the module. Arguments that
    they replace can't be used any more; take the new ones from what they return or from
    ``function.inputs``.
    """

    def __init__(self, function: Function, value: ir.Value, kind: Kind) -> None:
        if value.dtype is None or value.shape is None or not value.shape.is_static():
            raise HbirError(f"{value.name}: inputs and outputs need a dtype and a static shape")
        self.function = function
        self.value = value
        self.kind: Kind = kind

    @property
    def name(self) -> str:
        """The name, under which the argument is fed; can be set."""
        return self.value.name or ""

    @name.setter
    def name(self, name: str) -> None:
        from qtune.hbir.passes.ports import rename

        rename(self, name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the example."""
        return () if self.value.shape is None else tuple(self.value.shape.numpy())

    @property
    def dtype(self) -> str:
        """``float32``, ``int8``, ``bool``, ..."""
        return torch_name(self.value.dtype or ir.DataType.UNDEFINED)

    @property
    def desc(self) -> str:
        """Free text kept in the file; can be set."""
        return self.function.descs(self.kind).get(self.name, "")

    @desc.setter
    def desc(self, text: str) -> None:
        from qtune.hbir.passes.ports import describe_argument

        describe_argument(self, text)

    @property
    def scale(self) -> float | list[float] | None:
        """The scale of integer codes, ``real = code * scale``; ``None`` for real numbers.

        After ``remove_io_op`` took the Quantize or Dequantize away, host code needs it. A list is
        one scale per channel, those of an int32 accumulator.
        """
        removed = json.loads(self.function.metadata.get(META_REMOVED, "{}"))
        if self.name in removed:
            found: float | list[float] = removed[self.name]
            return found
        text = self.value.metadata_props.get(META_SCALE)
        return None if text is None or META_DTYPE not in self.value.metadata_props else float(text)

    @property
    def is_removable(self) -> Removal:
        """Whether the operator on this argument can be removed, and why not."""
        from qtune.hbir.passes.remove import removable

        return removable(self)

    @property
    def get_attached_op(self) -> list[Operation]:
        """The operations that use this input, or the one that makes this output."""
        from qtune.hbir.passes.remove import attached

        return [Operation.of(node) for node in attached(self)]

    def remove_attached_op(self) -> Removal:
        """Remove the one operator on this argument, which then has that operator's other type."""
        from qtune.hbir.passes.remove import remove_attached

        return remove_attached(self)

    def erase(self) -> Removal:
        """Remove the argument itself: an input that nothing uses, or an output."""
        from qtune.hbir.passes.remove import erase

        return erase(self)

    def insert_transpose(self, permutes: Sequence[int]) -> list[Argument]:
        """Let dimension ``i`` of this argument become dimension ``permutes[i]``.

        ``permutes`` is the inverse of NumPy's axes: (0, 3, 1, 2) makes NHWC of NCHW. Return the new
        argument in a list.
        """
        from qtune.hbir.passes.movement import insert_transpose

        return insert_transpose(self, permutes)

    def insert_split(self, dim: int) -> list[Argument]:
        """Replace this argument by one of size 1 for each index of dimension ``dim``.

        They are called ``<name>_0``, ``<name>_1``, ...
        """
        from qtune.hbir.passes.movement import insert_split

        return insert_split(self, dim)

    def insert_image_preprocess(
        self,
        mode: str,
        divisor: float = 1,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        is_signed: bool = True,
        bit_width: int = 8,
        image_layout: str = "NHWC",
    ) -> list[Argument]:
        """Let a float picture input take bytes: colour conversion, then normalization.

        ``(colour(pixel) / divisor - mean) / std`` becomes what the float model was fed, pixels
        0..255. ``mode``: ``skip`` (no conversion), ``yuvbt601full2rgb``, ``yuvbt601full2bgr``,
        ``yuvbt601video2rgb``, ``yuvbt601video2bgr``, ``bgr2rgb``, ``rgb2bgr``. ``is_signed``: the
        input is int8 ``pixel - 128``, else uint8 ``pixel``. ``image_layout``: ``NHWC`` or ``NCHW``.
        """
        from qtune.hbir.passes.image import insert_image_preprocess

        return insert_image_preprocess(
            self, mode, divisor, mean, std, is_signed, bit_width, image_layout
        )

    def insert_image_convert(self, mode: str = "nv12") -> list[Argument]:
        """Let a picture input take camera planes of bytes.

        ``nv12``: two uint8 inputs ``<name>_y`` [N, H, W, 1] and ``<name>_uv`` [N, H/2, W/2, 2] in
        place of 3 channels; ``gray``: one uint8 input in place of 1 channel. A float input gets
        ``(pixel - 128) / 128``, one made by ``insert_image_preprocess`` gets the pixels.
        """
        from qtune.hbir.passes.image import insert_image_convert

        return insert_image_convert(self, mode)

    def insert_roi_resize(
        self,
        mode: str,
        interp_mode: str = "bilinear",
        pad_mode: str = "constant",
        pad_value: Sequence[int] = (0, -128),
        *,
        source_size: tuple[int, int] | None = None,
    ) -> list[Argument]:
        """Like ``insert_image_convert``, from a region of a larger picture.

        The inputs are the planes of the picture, ``source_size`` (H, W) large (default: the
        argument's own size), and ``<name>_roi`` int32 [N, 4]: left, top, right, bottom, both ends
        inside. ``pad_value``: bytes of luma and chroma outside of the picture.
        """
        from qtune.hbir.passes.image import insert_roi_resize

        return insert_roi_resize(self, mode, interp_mode, pad_mode, pad_value, source_size)

    def insert_rle(self) -> list[Argument]:
        """Not done: the run-length code of the chip's outputs is not published."""
        raise NotImplementedError(
            f"insert_rle({self.name!r}) is not implemented: the format of the run-length code is "
            "not published"
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"

    def __repr__(self) -> str:
        return f"Argument({self})"


def torch_name(dtype: ir.DataType) -> str:
    """``float32``, ``int8``, ``bool``, ... for an onnx element type."""
    return str(dtype.numpy())


def check_alive(argument: Argument) -> int:
    """The place of ``argument`` in its function; an ``ArgumentError`` where it has none."""
    argument.function.check_editable()
    graph = argument.function.model.graph
    values = graph.inputs if argument.kind == "inputs" else graph.outputs
    for index, value in enumerate(values):
        if value is argument.value:
            return index
    raise ArgumentError(
        f"the argument {argument.name!r} is no longer part of function "
        f"{argument.function.name!r}: an earlier change replaced it. Take it again from "
        f"function.{argument.kind}"
    )


def unknown_choice(where: str, value: Any, known: Sequence[str]) -> ArgumentError:
    """The one error for a word that is none of the documented ones."""
    return ArgumentError(f"{where}: expected one of {', '.join(known)}, got {value!r}")
