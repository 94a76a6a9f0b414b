"""The rules of ``qtune.arith`` in torch: fast, and equal to them in every bit.

Codes are *held*: qint8 as ``torch.uint8`` with ``code + 128``, qint16 as ``torch.int16``, int32 as
``torch.int32`` (see ``qtune.ops.kernel``); 4-d maps in channels_last.
"""
