"""Function bodies of the ``qtune`` operators, one file per family.

A file holds ``BODIES`` (operator name -> ONNX text for ``onnx.parser.parse_function``, domain
``qtune``, opset 21) and ``SCHEMAS`` (operator name -> :class:`qtune.hbir.domain.DomainOp`).
:mod:`qtune.hbir.domain` collects them.
"""
