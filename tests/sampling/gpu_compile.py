"""Compiles the kernels of the GPU sampler, which needs no GPU. ``test_gpu_compile.py`` runs it in a process of its own,
since the other tests interpret kernels."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.sampling.gpu.kernels.hops.edges import count, emit, fetch, pick
from manyhop.sampling.gpu.kernels.hops.nodes import drop, enter, finish, plant
from manyhop.sampling.gpu.kernels.hops.wide import pick_wide, spread
from manyhop.sampling.gpu.kernels.labor import (
    BY_SHARE,
    EQUAL,
    SMALLEST,
    SMALLEST_BY_WEIGHT,
    labor_keys,
    labor_mark,
    labor_place,
)
from manyhop.sampling.gpu.kernels.labor_columns import labor_rank, labor_scale, labor_weigh
from manyhop.sampling.gpu.kernels.launch import follow
from manyhop.sampling.gpu.kernels.walks import page_rank, walk
from manyhop.sampling.gpu.labor import LaborMemory
from manyhop.sampling.gpu.launch.memory import Edges, Frontier, Nodes, Reports, Seeds, Sums, Tables
from manyhop.system.triton_compiler import showing_compilation

PARTS = {
    "tables": Tables, "seeds": Seeds, "nodes": Nodes, "frontier": Frontier, "edges": Edges, "sums": Sums,
    "reports": Reports, "labor": LaborMemory,
}  # fmt: skip
OTHERS = {
    "weight": "*fp32",
    "value": "*fp64",
    "tree": "*i32",
    "column": "*i32",
    "slots": "*i32",
    "stop": "*fp64",
    "bias": "*fp64",
    "numbers": "*fp64",
    "lists": "*i32",
    "found_rank": "*fp64",
}  # than int64
OPTIONS = {
    "REPLACE": False, "WEIGHTED": False, "TIMED": False, "WINDOW": False, "LAST": False, "DISJOINT": False,
    "EXCLUDE": False, "FETCHED": False, "WEIGHTS": True, "EXPAND_ALL": False, "COPIES": True, "MORE": True,
    "NEXT": True, "CHAIN": 2, "K": 5, "KP": 8, "B": 32, "T": 64,
    "DEPENDENCY": 1, "SAME": False, "CHUNKS": 1024,
}  # fmt: skip
POISSON = {"KIND": BY_SHARE.value, "KIND_WITHOUT": EQUAL.value}
EXACT = {"KIND": SMALLEST_BY_WEIGHT.value, "KIND_WITHOUT": SMALLEST.value}
SHORT, LONG = {"B": 16, "LONGER": 0, "W": 32}, {"B": 1, "LONGER": 256, "W": 1024}
LABOR = (labor_keys, labor_mark, labor_place)
WEIGHTED = {"WEIGHTED": True, "NEXT": False, "K": 3, "KP": 4}  # fewer slots than draws at once
TEMPORAL = {"TIMED": True, "WINDOW": True, "DISJOINT": True, "COPIES": False}
VARIANTS = [
    *((kernel, {}) for kernel in (pick, drop, fetch, enter, finish, pick_wide)),
    *((kernel, WEIGHTED) for kernel in (count, pick, spread, pick_wide)),
    *((kernel, TEMPORAL) for kernel in (plant, count, pick, emit)),
    *((kernel, {"EXCLUDE": True, "FETCHED": True}) for kernel in (plant, enter)),
    *((kernel, POISSON) for kernel in LABOR),
    *((kernel, EXACT | {"DEPENDENCY": 4, "SAME": True}) for kernel in LABOR),
    *((kernel, EXACT | size) for kernel in (labor_scale, labor_rank, labor_weigh) for size in (SHORT, LONG)),
    (pick, WEIGHTED | {"REPLACE": True}),
    *((kernel, WEIGHTED | TEMPORAL) for kernel in (count, pick, spread, pick_wide)),
    *((kernel, WEIGHTED | TEMPORAL | {"REPLACE": True}) for kernel in (pick, pick_wide)),
    (spread, TEMPORAL | {"LAST": True}),
    (walk, {"BIASED": False, "STOPS": False, "EDGE_IDS": True}),
    (page_rank, {"T": 32}),
    (walk, {"BIASED": True, "STOPS": True, "EDGE_IDS": False, "WEIGHTED": True}),
]


def build(kernel, options):
    constants = {name: value for name, value in (OPTIONS | options).items() if name in kernel.arg_names}
    scalars = dict.fromkeys(kernel.do_not_specialize, "i32") | {"mask": "i64"}
    parts = {name: part(*(OTHERS.get(field, "*i64") for field in part._fields)) for name, part in PARTS.items()}
    types = {name: (OTHERS | scalars | parts).get(name, "*i64") for name in kernel.arg_names}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 1 if kernel in (pick, page_rank) else 4})
    assert compiled.asm["cubin"]
    found = dict(kernel.used_global_vals)
    if "follow()" in kernel.src:  # whose key is part of this one; triton 3.6 does not list what it uses as well
        found |= follow.used_global_vals
    assert "SOURCES" in {name for name, _ in found}, "columns are not in the key of triton's cache"
    print(kernel.__name__, options, flush=True)


if __name__ == "__main__":
    with showing_compilation():
        for kernel, options in VARIANTS:
            build(kernel, options)
