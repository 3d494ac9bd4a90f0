"""Compiles the kernels of padding, which needs no GPU. ``test_gpu_pad_compile.py`` runs it in a process of its own,
since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.pipeline.gpu.kernels.pad import clear_rows, pad_samples

KERNELS = [
    (pad_samples, ("table", "blocks", "programs", "num_trees"), {"SPARE": 32, "TILE": 1024}),
    (clear_rows, ("table", "blocks", "programs"), {"TILE": 1024}),
]

if __name__ == "__main__":
    for kernel, names, constants in KERNELS:
        types = dict.fromkeys(names, "i64") | dict.fromkeys(constants, "constexpr")
        compiled = triton.compile(ASTSource(kernel, types, constants), GPUTarget("cuda", 90, 32), {"num_warps": 4})
        assert compiled.asm["cubin"]
        print(kernel.__name__, flush=True)
