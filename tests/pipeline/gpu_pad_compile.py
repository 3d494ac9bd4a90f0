"""Compiles the kernels of padding, which needs no GPU. ``test_gpu_pad_compile.py`` runs it in a process of its own,
since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.loading.pipeline.gpu.kernels import FIELDS, clear_rows, pad_samples

KERNELS = [
    (pad_samples, {"table": 0, "blocks": 0, "programs": 0, "num_trees": 0}, {"SPARE": 32, "TILE": 1024}),
    *[(clear_rows, {"calls": n * FIELDS.value, "blocks": 0, "programs": 0}, {"NUM": n, "TILE": 1024}) for n in (4, 16)],
]
"""Kernel, its arguments with the lengths of tuples (0: a single integer), constants."""

if __name__ == "__main__":
    for kernel, arguments, constants in KERNELS:
        types = {name: ("i64",) * n if n else "i64" for name, n in arguments.items()}
        types |= dict.fromkeys(constants, "constexpr")
        compiled = triton.compile(ASTSource(kernel, types, constants), GPUTarget("cuda", 90, 32), {"num_warps": 4})
        assert compiled.asm["cubin"]
        print(kernel.__name__, flush=True)
