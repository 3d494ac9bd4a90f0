"""Aggregation by kernels. Imports triton."""

from manyhop.system import triton_compiler

triton_compiler.require("Aggregation on a GPU")
