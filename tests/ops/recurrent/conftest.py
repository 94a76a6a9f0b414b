from tests.ops.whole import quiet

__all__ = ["quiet"]
