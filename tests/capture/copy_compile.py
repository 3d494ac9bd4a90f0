"""Compiles the kernel that copies batches, which needs no GPU. ``test_capture_buffers.py`` runs it in a process of its
own, since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.capture.kernels import FIELDS, copy_tensors

if __name__ == "__main__":
    for count in (8, 16, 32):
        types = {"calls": ("i64",) * (count * FIELDS.value), "NUM": "constexpr"}
        source = ASTSource(copy_tensors, types, {"NUM": count})
        compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4})
        assert compiled.asm["cubin"]
        assert "ld.global.v2.b64" in compiled.asm["ptx"]  # 16 bytes at once
        print(count, flush=True)
