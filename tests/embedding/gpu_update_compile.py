"""Compiles the kernels of updates, which needs no GPU. ``test_gpu_update_compile.py`` runs it in a process of its own,
since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop_embedding.gradients import Kind
from manyhop_embedding.kernels.routes import count_rows, find_routes, merge_runs, number_rows
from manyhop_embedding.kernels.update import NUMBERS, refresh_rows, sum_pieces, update_rows

INTEGERS = (
    "ids",
    "order",
    "begin",
    "end",
    "grads",
    "pieces",
    "weight",
    "first",
    "state_a",
    "state_b",
    "stamps",
    "stamp",
    "apart",
    "apart_end",
    "groups",
    "hot_weight",
    "hot_a",
    "hot_b",
)
CONSTANTS = ("KIND", "WIDE_IDS", "WIDE_GRADS", "WIDE_WEIGHT", "WIDTH", "LANES", "ROWS", "COLUMNS", "HOT")
VARIANTS = [
    (Kind.STORE, True, True, True, 300, 4, 4, 256, False),
    (Kind.SGD, True, False, False, 3, 1, 64, 16, False),
    (Kind.ADAM, False, True, True, 128, 4, 8, 128, False),
    (Kind.ADAM, False, True, True, 128, 4, 8, 128, True),
    (Kind.ADAM, False, False, False, 128, 4, 8, 128, False),
    (Kind.ADAGRAD, False, True, False, 256, 1, 4, 256, True),
    (Kind.RMSPROP, False, True, True, 32, 4, 32, 32, False),
]


def compiled(function, types, values):
    source = ASTSource(function, types | dict.fromkeys(values, "constexpr"), values)
    return triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4})


if __name__ == "__main__":
    for wide in (True, False):
        values = {"WIDE_IDS": not wide, "WIDE_GRADS": wide, "WIDTH": 128, "LANES": 4, "ROWS": 8, "COLUMNS": 128}
        assert compiled(sum_pieces, dict.fromkeys(INTEGERS[:6], "i64"), values).asm["cubin"]
    types = dict.fromkeys(INTEGERS, "i64") | {"numbers": ("i64",) * NUMBERS.value}
    for kind, *others in VARIANTS:
        found = compiled(update_rows, types, dict(zip(CONSTANTS, (int(kind), *others), strict=True)))
        code, wide_grads, lanes = found.asm["ptx"], others[1], others[4]
        assert found.asm["cubin"]
        vectors = sum(f"ld.global.{words}" in code for words in ("v4.b32", "v2.b32"))
        assert bool(vectors) == (lanes == 4), (kind, *others)
        assert not wide_grads or lanes == 1 or "ld.global.v4.b32" in code, (kind, *others)
        print(kind, *others, flush=True)
    integers = ("ids", "count", "stamps", "latest", "table", "num_rows", "rows", "groups", "hot")
    for wide in (True, False):
        values = {"WIDE_IDS": wide, "WORDS": 256, "ROWS": 32, "HOT": not wide}
        assert compiled(refresh_rows, dict.fromkeys(integers, "i64"), values).asm["cubin"]
    for wide in (True, False):
        for function, integers in (
            (count_rows, ("ids", "count", "counts")),
            (number_rows, ("ids", "count", "counts", "before", "rows")),
        ):
            assert compiled(function, dict.fromkeys(integers, "i64"), {"WIDE_IDS": wide, "BLOCK": 1024}).asm["cubin"]
        integers = ("ids", "count", "before", "bounds", "ranks", "bounds_of_rank", "total", "at", "routes")
        assert compiled(find_routes, dict.fromkeys(integers, "i64"), {"WIDE_IDS": wide, "LANES": 2}).asm["cubin"]
        types = dict.fromkeys(("ids", "rows", "order"), "i64") | {"begins": ("i64",) * 3}
        assert compiled(merge_runs, types, {"WIDE_IDS": wide, "RUNS": 2, "BLOCK": 1024}).asm["cubin"]
