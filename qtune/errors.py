"""Every error qtune raises, one class per kind of failure.

A message says where, what came, what was expected, and what to do. All of them are ``QtuneError``,
and also the built-in class a Python user would expect (``ValueError``, ``TypeError``, ...).
"""

from __future__ import annotations


class QtuneError(Exception):
    """Base class of all errors raised on purpose by qtune."""


class ArgumentError(QtuneError, ValueError):
    """An argument has a value or a type that the called function can't take."""


class MarchError(QtuneError, ValueError):
    """No march was set, the march is unknown, or an operator breaks a limit of the march."""


class CaptureError(QtuneError, RuntimeError):
    """The model could not be recorded while it ran on the example inputs."""


class GuardError(CaptureError):
    """A recorded graph met inputs for which the model would have taken another path."""


class RegistryError(QtuneError, LookupError):
    """An operator is unknown to the registry, or registered twice."""


class PrepareError(QtuneError, ValueError):
    """``prepare`` was called with a model or with inputs that it can't use."""


class QconfigError(QtuneError, ValueError):
    """A qconfig, template or setter is malformed or asks for what can't be given."""


class NotCalibratedError(QtuneError, RuntimeError):
    """A fake-quantize that never saw data was asked for its scale."""


class NonFiniteError(QtuneError, ValueError):
    """NaN reached a place where it would become a finite number without notice."""


class ExportError(QtuneError, ValueError):
    """A prepared model has no HBIR form."""


class ConvertError(QtuneError, ValueError):
    """An HBIR module can't be turned into integers on this march."""


class HbirError(QtuneError, ValueError):
    """An HBIR module or file breaks the rules of the format."""


class OnnxImportError(HbirError):
    """An ONNX file of another tool has no HBIR form."""


class RunError(QtuneError, RuntimeError):
    """A module could not be run on the given inputs."""


class AnalysisError(QtuneError, ValueError):
    """An analysis was asked for something that its inputs don't allow."""


class BaselineError(QtuneError, ValueError):
    """A file of baselines is damaged, too new, or can't be written."""


class MissingNameError(QtuneError, ImportError):
    """A script of the toolchain asks for a name that qtune has no counterpart of."""


def kind_of(value: object) -> str:
    """What a message calls ``value``.

    >>> kind_of(3), kind_of([]), kind_of(None)
    ('an int', 'a list', 'None')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
