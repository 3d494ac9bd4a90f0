"""Compiles the kernels of the gather, which needs no GPU. ``test_gpu_gather_compile.py`` runs it in a process of its
own, since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.features.kernels.gather import FIELDS, find_slots, gather_rows

NAMES = ("NUM", "MIXED", "CHECK", "HOT", "SORTED", "TILE")
VARIANTS = [
    (1, False, False, False, False, 256),
    (16, True, True, False, False, 256),
    (4, True, False, True, False, 256),
    (1, False, True, True, True, 256),
]

if __name__ == "__main__":
    for values in VARIANTS:
        types = {"table": "i64", "calls": ("i64",) * (values[0] * FIELDS.value), "flag": "i64"}
        source = ASTSource(
            gather_rows, types | dict.fromkeys(NAMES, "constexpr"), dict(zip(NAMES, values, strict=True))
        )
        compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4})
        assert compiled.asm["cubin"]
        assert "ld.global.v2.b64" in compiled.asm["ptx"], "words of 16 bytes are not read at once"
        assert "st.global.v2.b64" in compiled.asm["ptx"], "words of 16 bytes are not written at once"
        print(*values, flush=True)

    arguments = dict.fromkeys(("groups", "index", "count", "num_rows", "slots"), "i64")
    compiled = triton.compile(ASTSource(find_slots, arguments, {}), GPUTarget("cuda", 90, 32), {"num_warps": 4})
    assert compiled.asm["cubin"]
    print("find_slots", flush=True)
