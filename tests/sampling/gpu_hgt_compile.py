"""Compiles the kernels of HGT sampling that choose neighbours, which needs no GPU; ``test_gpu_compile.py`` runs it in a
process of its own."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.sampling.gpu.induced import tile_of
from manyhop.sampling.gpu.kernels.hgt import list_columns, list_neighbors, measure_frontier
from manyhop.sampling.gpu.kernels.induced import find_chosen

INT32 = {"copy", "local", "tile_count", "found_row"}  # arrays of int32; the others are of int64


def build(kernel, **options):
    constants = {name: value for name, value in options.items() if name in kernel.arg_names}
    scalars = dict.fromkeys(kernel.do_not_specialize, "i32") | {"mask": "i64", "max_nodes": "i64"}
    types = {name: scalars.get(name, "*i32" if name in INT32 else "*i64") for name in kernel.arg_names}
    types |= {"value": "*fp64"} if "value" in types else {}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 1 if "LIMIT" in options else 4})
    assert compiled.asm["cubin"]
    print(kernel.__name__, options, flush=True)


if __name__ == "__main__":
    for kernel in (measure_frontier, list_columns):
        build(kernel, T=256)
    slots, columns = tile_of(50)
    for kernel in (list_neighbors, find_chosen):
        build(kernel, LIMIT=50, SLOTS=slots, B=columns)
