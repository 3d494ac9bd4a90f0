"""Aggregation by kernels, as operators of torch. Imports triton."""

from manyhop.system import triton_compiler

triton_compiler.require("Aggregation on a GPU")

from manyhop_train.aggregation.gpu.operators import aggregate_segments  # noqa: E402

__all__ = ["aggregate_segments"]
