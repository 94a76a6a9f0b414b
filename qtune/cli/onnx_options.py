"""The arguments of ``qtune onnx``."""

from __future__ import annotations

import argparse

from qtune.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to build, from what, and for which march."""
    parser.add_argument(
        "action",
        choices=("build", "check"),
        metavar="build|check",
        help="build calibrates, converts and writes all stages; check takes random data, writes "
        "nothing and says what the march runs",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a float ONNX file")
    group = parser.add_argument_group("build")
    group.add_argument("--data", metavar="DIR", help="calibration data, DIR/<input>/<i>.npy")
    group.add_argument(
        "--march",
        metavar="NAME",
        help=f"such as nash-e (default: ${options.MARCH_VARIABLE}, else nash, which is nash-e)",
    )
    group.add_argument(
        "--out", metavar="PREFIX", help="folder and first part of the files (default: MODEL's name)"
    )
    group.add_argument(
        "--quant-config", metavar="FILE", help="methods, dtypes and searches, JSON or YAML"
    )
    group.add_argument(
        "--config", metavar="FILE", help="the toolchain's yaml; options win over its keys"
    )
    group.add_argument(
        "--input-shape",
        action="append",
        default=[],
        type=options.named_shape,
        metavar="INPUT=SHAPE",
        help="sizes of an input that are free in the model, such as image=1x3x224x224",
    )
    group.add_argument(
        "--output-node",
        action="append",
        default=[],
        metavar="NAME",
        help="end the model at this node or tensor; may be given several times",
    )
    group.add_argument(
        "--dump-calibration-data",
        action="store_true",
        help="also write calibration_data/<input>/<i>.npy, for the debugger",
    )
    group = parser.add_argument_group("gates")
    group.add_argument(
        "--min-cosine",
        type=float,
        metavar="VALUE",
        help="least cosine similarity of each output of the integer model with the float one",
    )
    options.add_messages(parser)
