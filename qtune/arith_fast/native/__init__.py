"""Kernels compiled at first use by LLVM (the optional package llvmlite), exact in every bit.

``engine`` decides whether they may run and compiles them, ``emitter`` writes LLVM's code; each
other file holds one family of kernels and the class that calls it on held tensors. What a kernel
can't take, it refuses before it runs (``None`` in place of a kernel): the torch forms take over.
"""
