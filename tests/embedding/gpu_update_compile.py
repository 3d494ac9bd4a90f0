"""Compiles the kernel of updates, which needs no GPU. ``test_gpu_update_compile.py`` runs it in a process of its own,
since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.embedding.kernels.update import NUMBERS, sum_pieces, update_rows
from manyhop.embedding.rules import Kind

INTEGERS = ("ids", "order", "count", "grads", "pieces", "weight", "first", "state_a", "state_b", "width")
CONSTANTS = ("KIND", "WIDE_GRADS", "WIDE_WEIGHT", "ROWS", "COLUMNS")
VARIANTS = [
    (Kind.STORE, True, True, 4, 256),
    (Kind.SGD, False, False, 64, 16),
    (Kind.ADAM, True, True, 8, 128),
    (Kind.ADAM, False, False, 8, 128),
    (Kind.ADAGRAD, True, False, 4, 256),
    (Kind.RMSPROP, True, True, 32, 32),
]

if __name__ == "__main__":
    for wide in (True, False):
        types = dict.fromkeys(("ids", "order", "count", "grads", "pieces", "width"), "i64")
        values = {"WIDE_GRADS": wide, "ROWS": 8, "COLUMNS": 128}
        source = ASTSource(sum_pieces, types | dict.fromkeys(values, "constexpr"), values)
        assert triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4}).asm["cubin"]
    for kind, *others in VARIANTS:
        types = dict.fromkeys(INTEGERS, "i64") | {"numbers": ("i64",) * NUMBERS.value}
        values = dict(zip(CONSTANTS, (int(kind), *others), strict=True))
        source = ASTSource(update_rows, types | dict.fromkeys(CONSTANTS, "constexpr"), values)
        compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4})
        assert compiled.asm["cubin"]
        print(kind, *others, flush=True)
