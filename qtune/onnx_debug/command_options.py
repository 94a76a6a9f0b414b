"""The subcommands of ``hmct-debugger`` and their options, as the document's tables have them.

Data alone: what a subcommand does is imported when it runs. Options have the names of the
functions' parameters; the value of each is what the function gets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qtune.errors import ArgumentError
from qtune.onnx_debug.command_lists import read_list

REQUIRED = object()
METRICS = ("cosine-similarity", "mse", "mre", "sqnr", "chebyshev")
QTYPES = ("float32", "int16")
KINDS = ("node", "weight", "activation")

_QTYPE_HELP = f"what sensitive nodes are given instead of their grid: {', '.join(QTYPES)}"
_SEPARATED_HELP = "a figure for each output of the model"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its parameter, its short forms, how its text is read, and what it is for."""

    name: str
    short: tuple[str, ...]
    read: Callable[[str], Any]
    default: Any
    help: str
    metavar: str

    @property
    def flags(self) -> list[str]:
        """All spellings, long ones with hyphens and with underscores."""
        spellings = dict.fromkeys((self.name.replace("_", "-"), self.name))
        return [*self.short, *(f"--{name}" for name in spellings)]

    @property
    def is_switch(self) -> bool:
        """Whether it may stand alone, for ``True``."""
        return self.read is boolean


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One subcommand: the function ``name`` of ``module``, called with ``data`` and the options."""

    name: str
    module: str
    help: str
    options: tuple[Option, ...]
    data: str = "calibrated_data"

    @property
    def function(self) -> str:
        """The function's name."""
        return self.name.replace("-", "_")


def boolean(text: str) -> bool:
    """``True`` and ``False`` in any case."""
    values = {"true": True, "false": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"expected True or False, got {text!r}")
    return values[text.lower()]


def whole(text: str) -> int | None:
    """A whole number or ``None``."""
    if text == "None":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number or None, got {text!r}") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def name(text: str) -> str | None:
    """A name, or ``None``."""
    return None if text == "None" else text


def names(text: str) -> Any:
    """A name or a list of names."""
    return _listed(text, nested=False)


def groups(text: str) -> Any:
    """A name, a list of names, or a list of such lists."""
    return _listed(text, nested=True)


def _listed(text: str, *, nested: bool) -> Any:
    try:
        return read_list(text, nested=nested)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def one_of(known: tuple[str, ...]) -> Callable[[str], str | None]:
    """One of ``known``, or ``None``."""

    def read(text: str) -> str | None:
        if text != "None" and text not in known:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(known)}; got {text!r}")
        return name(text)

    return read


def _metrics(parameter: str, *short: str) -> Option:
    text = f"metric or list of metrics, the first one sorts: {', '.join(METRICS)}"
    return Option(parameter, short, names, METRICS[0], text, "METRICS")


def _metric(parameter: str, *short: str) -> Option:
    text = f"metric: {', '.join(METRICS)}"
    return Option(parameter, short, one_of(METRICS), METRICS[0], text, "METRIC")


def _save(default: Any, *short: str) -> Option:
    return Option("save_dir", short, str, default, "folder for what is written", "DIR")


def _data_num(default: int | None, *short: str) -> Option:
    text = "how many items of the data are used; None: all"
    return Option("data_num", short, whole, default, text, "N")


def _verbose() -> Option:
    return Option("verbose", ("-v",), boolean, False, "print the table", "True|False")


def _output() -> Option:
    text = "ordinary node whose output is compared; None: the outputs of the model"
    return Option("output_node", ("-o",), name, None, text, "NODE")


def _interested() -> Option:
    text = "only these nodes, of whatever type"
    return Option("interested_nodes", ("-i",), names, None, text, "NODES")


def _average(*short: str) -> Option:
    text = "each point is the mean of the errors up to there"
    return Option("average_mode", short, boolean, False, text, "True|False")


def _quantize(*short: str) -> Option:
    text = (
        "quantize only these nodes: a curve for each name, or for each list of a nested list; "
        "weight and activation stand for all calibration nodes of the type"
    )
    return Option("quantize_node", short, groups, None, text, "NODES")


def _non_quantize(*short: str) -> Option:
    text = "quantize all but these nodes: a curve for each name, or for each list"
    return Option("non_quantize_node", short, groups, None, text, "NODES")


def _nodes(parameter: str, short: str, what: str, default: Any = REQUIRED) -> Option:
    return Option(parameter, (short,), names, default, what, "NODES")


def _axis() -> Option:
    text = "place of the channels in the shape; None: 1 for activations, the node's own for weights"
    return Option("axis", ("-a",), whole, None, text, "AXIS")


def _threshold(*short: str) -> Option:
    text = "nodes whose cosine similarity is below it are sensitive"
    return Option("pick_threshold", short, number, 0.999, text, "NUMBER")


def _sensitive() -> Option:
    text = "analyse these nodes instead of picking some"
    return Option("sensitive_nodes", ("-sn",), names, None, text, "NODES")


def _node_type(short: str, default: str | None, text: str) -> Option:
    return Option("node_type", (short,), one_of(KINDS), default, text, "TYPE")


SUBCOMMANDS = (
    Subcommand(
        "get-sensitivity-of-nodes",
        "qtune.onnx_debug.sensitivity",
        "which node costs the accuracy, quantized alone",
        (
            _metrics("metrics", "-m"),
            _output(),
            _node_type("-n", KINDS[0], f"type of the nodes: {', '.join(KINDS)}"),
            _data_num(1, "-d"),
            _verbose(),
            _interested(),
            _save(None, "-s"),
        ),
    ),
    Subcommand(
        "plot-acc-error",
        "qtune.onnx_debug.accumulated",
        "how the error grows from node to node, with chosen nodes quantized",
        (
            _quantize("-q"),
            _non_quantize("-nq"),
            _metric("metric", "-m"),
            _average("-a"),
            _save("./debug_result/", "-s"),
        ),
    ),
    Subcommand(
        "plot-distribution",
        "qtune.onnx_debug.distribution",
        "histograms of weights, activations and outputs",
        (_nodes("nodes_list", "-n", "nodes of any type"), _save("./", "-s")),
    ),
    Subcommand(
        "get-channelwise-data-distribution",
        "qtune.onnx_debug.channels",
        "box plots of the channels that calibration nodes read",
        (_nodes("nodes_list", "-n", "calibration nodes"), _axis(), _save("./", "-s")),
    ),
    Subcommand(
        "sensitivity-analysis",
        "qtune.onnx_debug.freed",
        "sensitive nodes quantized alone, and left in float one after the other",
        (
            _metric("metric", "-m"),
            _threshold("-p"),
            _data_num(1, "-d"),
            _sensitive(),
            Option("qtype", (), one_of(QTYPES), QTYPES[0], _QTYPE_HELP, "TYPE"),
            Option("output_separated", (), boolean, False, _SEPARATED_HELP, "True|False"),
            _save("./debug_result/", "-sd", "-s"),
        ),
    ),
    Subcommand(
        "tensor-analysis",
        "qtune.onnx_debug.tensors",
        "ranges, quantiles and errors of tensors and of their channels",
        (
            _nodes("node_names", "-n", "nodes of any type"),
            _save("./", "-s"),
            Option("num_processes", ("-p",), whole, 16, "tensors measured at a time", "N"),
        ),
        "calibration_data",
    ),
    Subcommand(
        "runall",
        "qtune.onnx_debug.runall_steps",
        "all of it, on the most sensitive nodes",
        (
            _save("./debug_result/", "-s"),
            _metrics("ns_metrics", "-nm"),
            _output(),
            _node_type(
                "-nt",
                None,
                f"type of the nodes that are ranked: {', '.join(KINDS)}; None: weights, then "
                "activations",
            ),
            _data_num(None, "-dn"),
            _verbose(),
            _interested(),
            _nodes("dis_nodes_list", "-dnl", "nodes whose distribution is drawn", None),
            _nodes("cw_nodes_list", "-cn", "calibration nodes whose channels are drawn", None),
            _axis(),
            _quantize("-qn"),
            _non_quantize("-nqn"),
            _metric("ae_metric", "-am"),
            _average("-avm"),
            _threshold("-pt"),
            _sensitive(),
        ),
    ),
)
