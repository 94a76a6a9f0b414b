"""Groups of options that several commands share, and the forms of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence

from qtune.march import March

MARCH_VARIABLE = "QTUNE_MARCH"
DEFAULT_DIR = "./horizon_quant_analysis"
RANDOM_STEPS = 8
_SHAPE = re.compile(r"\d+(x\d+)*")


def add_model(parser: argparse.ArgumentParser, *, bc: bool = False, other: bool = False) -> None:
    """MODEL (and OTHER), and the files of its weights."""
    group = parser.add_argument_group("model")
    text = (
        "module:factory or path/to/file.py:factory, a callable that returns the float model, or a "
        "model"
    )
    group.add_argument(
        "model", metavar="MODEL", help=text + ("; or a .bc or .onnx file" if bc else "")
    )
    if other:
        group.add_argument("other", metavar="OTHER", nargs="?", help="a second .bc or .onnx file")
    group.add_argument("--checkpoint", metavar="FILE", help="state dict of the float model")
    group.add_argument(
        "--calibrated",
        metavar="FILE",
        help="state dict of the calibrated model; nothing is calibrated then",
    )
    group.add_argument(
        "--save-calibrated", metavar="FILE", help="write the calibrated model's state dict"
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Where inputs come from."""
    group = parser.add_argument_group("data")
    which = group.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--data",
        metavar="SOURCE",
        help="module:factory, a callable that returns an iterable of inputs or of (inputs, "
        "label), or the iterable; or a .pt, .npy or .npz file, or a folder <input name>/<i>.npy",
    )
    which.add_argument(
        "--random",
        type=shapes,
        metavar="SHAPE[,SHAPE]",
        help="normal random numbers, one shape per argument of forward, such as 1x3x224x224; for "
        "a first look only",
    )
    group.add_argument(
        "--calibration-data", metavar="SOURCE", help="other data for calibration (default: --data)"
    )
    group.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help=f"most items to take of each source (default: all; {RANDOM_STEPS} of --random)",
    )
    group.add_argument(
        "--batch",
        type=positive,
        default=1,
        metavar="N",
        help="samples per item where tensors are cut into items (default: 1)",
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all random numbers (default: 0)"
    )


def add_quantization(parser: argparse.ArgumentParser) -> None:
    """How the model is prepared."""
    group = add_setting(parser)
    group.add_argument(
        "--observer", metavar="NAME", help="min_max, mse, percentile, kl, mix, ... (see docs)"
    )
    group.add_argument(
        "--int16",
        action="append",
        default=[],
        metavar="PREFIX",
        help="results of this operator, or of all in this module, become qint16; may be given "
        "several times",
    )
    group.add_argument(
        "--dtypes",
        metavar="FILE",
        help="dtypes of a qconfig_dtypes.pt that prepare or qtune tune wrote",
    )


def add_setting(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """March, qconfig and threads; the group, for more."""
    group = parser.add_argument_group("quantization")
    group.add_argument(
        "--march",
        metavar="NAME",
        help=f"the chip: {', '.join(m.value for m in March)} (default: ${MARCH_VARIABLE})",
    )
    group.add_argument(
        "--qconfig",
        metavar="module:NAME",
        help="a qconfig setter, or a callable that returns one (default: everything qint8)",
    )
    group.add_argument(
        "--threads", type=positive, metavar="N", help="threads of torch (default: torch's)"
    )
    return group


def add_search(parser: argparse.ArgumentParser) -> None:
    """How bad cases are chosen and judged."""
    group = parser.add_argument_group("bad cases")
    group.add_argument(
        "--metric", metavar="NAME", help="ranks cases and ports (default: ATOL, or --loss)"
    )
    group.add_argument(
        "--loss",
        metavar="module:function",
        help="a function of the two models' whole outputs, baseline first, that returns a number, "
        "smaller is better",
    )
    group.add_argument(
        "--topk",
        type=positive,
        default=1,
        metavar="N",
        help="worst cases to keep per output and metric (default: 1)",
    )


def add_operators(parser: argparse.ArgumentParser) -> None:
    """Which operators are looked at."""
    group = parser.add_argument_group("operators")
    group.add_argument(
        "--prefix",
        action="append",
        metavar="NAME",
        help="only operators whose name begins so; may be given several times",
    )
    group.add_argument(
        "--op-type",
        action="append",
        metavar="module:CLASS",
        help="only operators of this class or function, such as torch.nn:Conv2d; may be given "
        "several times",
    )


def add_top(parser: argparse.ArgumentParser, what: str) -> None:
    """How much is printed."""
    parser.add_argument(
        "--top",
        type=positive,
        default=10,
        metavar="N",
        help=f"{what} to print; the files have all (default: 10)",
    )


def add_output(parser: argparse.ArgumentParser, files: str, default: str = DEFAULT_DIR) -> None:
    """Where results go."""
    group = parser.add_argument_group("output")
    group.add_argument("--out-dir", default=default, metavar="DIR", help=f"{files} ({default})")
    add_messages_to(group)


def add_messages(parser: argparse.ArgumentParser) -> None:
    """What is said where."""
    add_messages_to(parser.add_argument_group("output"))


def add_messages_to(group: argparse._ArgumentGroup) -> None:
    """Options of what is said, in a group that has others."""
    group.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the text"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="no warnings, no progress")
    group.add_argument(
        "-v", "--verbose", action="count", default=0, help="more logs, tracebacks of errors"
    )
    group.add_argument("--traceback", action="store_true", help="tracebacks of errors")


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def natural(text: str) -> int:
    """A whole number of 0 or more."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return value


def latency(text: str) -> tuple[float, bool]:
    """``1.2x`` as (1.2, True), a factor; ``850`` as (850.0, False), microseconds."""
    number = text.removesuffix("x")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected 1.2x or microseconds, got {text!r}")
    return value, number != text


def shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """``1x3x8x8,1x4`` as ((1, 3, 8, 8), (1, 4))."""
    parts = text.split(",")
    if not all(_SHAPE.fullmatch(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected shapes such as 1x3x224x224, got {text!r}")
    return tuple(tuple(int(size) for size in part.split("x")) for part in parts)


def named_shape(text: str) -> tuple[str, list[int]]:
    """``image=1x3x8x8`` as ("image", [1, 3, 8, 8])."""
    name, _, shape = text.rpartition("=")
    if not name or not _SHAPE.fullmatch(shape):
        raise argparse.ArgumentTypeError(
            f"expected INPUT=SHAPE such as image=1x3x224x224, got {text!r}"
        )
    return name, [int(size) for size in shape.split("x")]


def bound(text: str) -> tuple[str, float]:
    """``COSINE=0.99`` as ("COSINE", 0.99)."""
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not name or value != value:
        raise argparse.ArgumentTypeError(f"expected METRIC=VALUE such as ATOL=0.1, got {text!r}")
    return name, value


def names_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A reader of some of ``known`` names with commas between; ``none`` is none of them."""

    def read(text: str) -> tuple[str, ...]:
        names = () if text == "none" else tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}, none"
            )
        return names

    return read
