"""Capture: a float model becomes a graph of its calls (architecture.md decision 2).

Nodes of a recorded graph, all with ``meta["scope"]`` (path of the calling module),
``meta["source"]`` (``file.py:12``) and ``meta["kind"]``; tensors also with ``shape`` and ``dtype``,
which are tuples for calls that give several tensors:

* ``placeholder`` (kind ``input``): a tensor of the arguments, target ``x`` or ``batch-image``;
* ``get_attr`` (``attribute``): a parameter, a buffer, ``_constant_<n>``, or ``<module>.training``;
* ``call_module`` (``op``): a leaf, by its path;
* ``call_function`` (``op``): torch's own callable (``F.relu``, ``torch.cat``, ``getattr`` for
  ``x.T``, ``SomeFunction.apply``, an ATen operator);
* ``call_method`` (``op``): operators and methods of tensors under the name that torch dispatches:
  ``add`` for ``x + y`` and ``2 + x``, ``add_`` for ``x += y``, ``mul``, ``div``, ``matmul``,
  ``remainder``, ``neg``, ``pow``, ``lt``, ..., dunder names where torch has no other
  (``__getitem__``, ``__setitem__``, ``__rsub__``, ``__rtruediv__``, ``__rpow__``,
  ``__floordiv__``, ``__eq__``, ``__and__``, ``__invert__``, ...);
  ``__setitem__`` gives the changed tensor;
* ``operator.getitem`` (``item``): one item of a call that gives several;
* ``size``: a size or arithmetic on sizes; ``value``: a plain value that a guard checks;
* ``guard``: a ``check_...`` function of :mod:`qtune.capture.guards`;
* ``output``: a flat tuple of the result's leaves.
"""

from qtune.capture.graph import GraphModel
from qtune.capture.inputs import Inputs, as_example_list, as_inputs
from qtune.capture.leaf import is_leaf
from qtune.capture.recorder import capture
from qtune.capture.symbolic import capture_symbolic

__all__ = [
    "GraphModel",
    "Inputs",
    "as_example_list",
    "as_inputs",
    "capture",
    "capture_symbolic",
    "is_leaf",
]
