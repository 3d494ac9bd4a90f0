"""Compiles the kernels of aggregation, which needs no GPU. ``test_gpu_aggregation_compile.py`` runs it in a process of
its own, since the other tests interpret kernels."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop_train.aggregation.gpu import attention, kernels

TYPES = {"DTYPE": tl.float32, "ACC": tl.float32, "INDEX": tl.int64, "CHANNELS": 256, "ALIGNED": True}
HALF = TYPES | {"DTYPE": tl.bfloat16, "INDEX": tl.int32}
ODD = TYPES | {"CHANNELS": 47, "ALIGNED": False}
SUM = {"MODE": 0, "NUMBERED": False, "HEADS": 0, "SCALED": False, "CHOSEN": False, "WINDOW": 32}
TILE = {"BLOCK": 256, "EDGES": 4}
VARIANTS = [
    ("add_segments", TYPES | SUM | TILE),
    ("add_segments", HALF | SUM | TILE | {"MODE": 1, "HEADS": 1}),
    ("add_segments", TYPES | SUM | TILE | {"NUMBERED": True, "SCALED": True, "HEADS": 1}),
    ("add_segments", ODD | SUM | {"BLOCK": 64, "EDGES": 16}),
    ("add_windows", TYPES | TILE | {"NUMBERED": True, "HEADS": 0, "SCALED": True, "CHOSEN": True, "WINDOW": 32}),
    ("max_segments", TYPES | TILE | {"NUMBERED": False, "TIES": True}),
    ("max_segments", HALF | TILE | {"NUMBERED": True, "TIES": False}),
    ("add_segments", HALF | SUM | TILE | {"NUMBERED": True, "CHOSEN": True}),
    ("edge_dots", HALF | TILE | {"HEADS": 1, "SCALED": True}),
    ("add_ends", TYPES | TILE),
    ("add_ends", ODD | {"BLOCK": 64, "EDGES": 16}),
    ("add_ends", HALF | {"CHANNELS": 4, "ALIGNED": False, "BLOCK": 4, "EDGES": 64}),
]

PER_HEAD = {"HEADS": 4, "SLOPE": 0.2, "BLOCK": 4, "EDGES": 16, "ACC": tl.float32}
ATTENTION = [
    (name, PER_HEAD | types | {"NUMBERED": numbered})
    for name in ("attention_segments", "attention_gradients")
    for types, numbered in (
        ({"DTYPE": tl.float32, "INDEX": tl.int64}, False),
        ({"DTYPE": tl.bfloat16, "INDEX": tl.int32}, True),
    )
]

SOFTMAX = [
    (name, {"DTYPE": dtype, "ACC": tl.float32, "HEADS": heads, "NUMBERED": own, "OWN": own, "BLOCK": 4, "EDGES": 16})
    for name in ("softmax_segments", "softmax_gradients")
    for dtype, heads, own in ((tl.float32, 4, False), (tl.bfloat16, 3, True), (tl.float32, 3, True))
]

if __name__ == "__main__":
    for name, constants in VARIANTS + ATTENTION + SOFTMAX:
        kernel = next(getattr(module, name) for module in (kernels, attention) if hasattr(module, name))
        types = {n: "constexpr" if n in constants else "i64" for n in kernel.arg_names}
        compiled = triton.compile(ASTSource(kernel, types, constants), GPUTarget("cuda", 90, 32), {"num_warps": 1})
        assert compiled.asm["cubin"]
        if constants.get("ALIGNED"):
            assert "ld.global.v4.b32" in compiled.asm["ptx"], f"{name} does not read 16 bytes at once"
        print(name, compiled.metadata.shared, compiled.asm["ptx"].count("ld.global.v4.b32"), flush=True)
