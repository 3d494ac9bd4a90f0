"""Compiles the kernels at the ends of graphs, which needs no GPU. ``test_capture_ends.py`` runs it in a process of its
own, since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop_train.capture.kernels import FIELDS, copy_tensors, fetch_arguments

TARGET = GPUTarget("cuda", 90, 32)

if __name__ == "__main__":
    for count in (8, 16, 32):
        for out in (False, True):
            types = {"calls": ("i64",) * (count * FIELDS.value), "arguments": "i64"}
            source = ASTSource(
                copy_tensors, types | {"NUM": "constexpr", "OUT": "constexpr"}, {"NUM": count, "OUT": out}
            )
            compiled = triton.compile(source, TARGET, {"num_warps": 4})
            assert compiled.asm["cubin"]
            assert "ld.global.v2.b64" in compiled.asm["ptx"]  # 16 bytes at once
            print(count, out, flush=True)
    names = {"ring": "i64", "count": "i64", "arguments": "i64", "SLOTS": "constexpr", "WIDTH": "constexpr"}
    for width in (16, 128):
        source = ASTSource(fetch_arguments, names, {"SLOTS": 64, "WIDTH": width})
        assert triton.compile(source, TARGET, {"num_warps": 1}).asm["cubin"]
