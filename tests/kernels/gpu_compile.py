"""Compiles all kernels for GPUs, which needs no GPU. ``test_gpu_compile.py`` runs it in a process of its own, since the
other tests interpret kernels."""

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from manyhop.features.kernels import gather
from manyhop.loading.pipeline.gpu import kernels as padding
from manyhop.sampling.gpu.induced import tile_of
from manyhop.sampling.gpu.kernels.hgt import list_neighbors
from manyhop.sampling.gpu.kernels.hops.edges import count, emit, fetch, pick
from manyhop.sampling.gpu.kernels.hops.nodes import drop, enter, finish, plant
from manyhop.sampling.gpu.kernels.hops.wide import pick_wide, spread
from manyhop.sampling.gpu.kernels.induced import find_chosen
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
from manyhop.sampling.gpu.kernels.tables import follow
from manyhop.sampling.gpu.kernels.walks import page_rank, walk
from manyhop.sampling.gpu.labor import LaborMemory
from manyhop.sampling.gpu.launch.memory import Edges, Frontier, Nodes, Reports, Seeds, Sums, Tables
from manyhop.system.triton_compiler import showing_compilation
from manyhop_embedding.gradients import Kind
from manyhop_embedding.kernels import NUMBERS, refresh_rows, sum_pieces, update_rows
from manyhop_train.aggregation.gpu import attention
from manyhop_train.aggregation.gpu import kernels as aggregation
from manyhop_train.capture import kernels as capture


def compiled(kernel: Any, types: dict[str, Any], constants: dict[str, Any], num_warps: int = 4) -> str:
    """Return the PTX of a kernel. Arguments without a type are int64, or addresses of such."""
    types = dict.fromkeys(kernel.arg_names, "i64") | types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants)
    found = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": num_warps})
    assert found.asm["cubin"]
    print(kernel.__name__, constants, flush=True)
    return str(found.asm["ptx"])


PARTS = {
    "tables": Tables, "seeds": Seeds, "nodes": Nodes, "frontier": Frontier, "edges": Edges, "sums": Sums,
    "reports": Reports, "labor": LaborMemory,
}  # fmt: skip
OTHERS = {
    "weight": "*fp32", "value": "*fp64", "tree": "*i32", "column": "*i32", "slots": "*i32", "stop": "*fp64",
    "bias": "*fp64", "numbers": "*fp64", "lists": "*i32", "found_rank": "*fp64",
}  # fmt: skip
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
SAMPLING = [
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


def compile_sampling() -> None:
    parts = {name: part(*(OTHERS.get(field, "*i64") for field in part._fields)) for name, part in PARTS.items()}
    for kernel, options in SAMPLING:
        constants = {name: value for name, value in (OPTIONS | options).items() if name in kernel.arg_names}
        scalars = dict.fromkeys(kernel.do_not_specialize, "i32") | {"mask": "i64"}
        types = {name: (OTHERS | scalars | parts).get(name, "*i64") for name in kernel.arg_names}
        compiled(kernel, types, constants, 1 if kernel in (pick, page_rank) else 4)
        used = dict(kernel.used_global_vals)
        if "follow()" in kernel.src:  # whose key is part of this one; triton 3.6 does not list what it uses as well
            used |= follow.used_global_vals
        assert "SOURCES" in {name for name, _ in used}, "columns are not in the key of triton's cache"


INT32 = {"copy", "local", "tile_count", "found_row"}  # arrays of int32; the others are of int64


def compile_hgt() -> None:
    slots, columns = tile_of(50)
    found = {"LIMIT": 50, "SLOTS": slots, "B": columns}
    for kernel in (list_neighbors, find_chosen):
        scalars = dict.fromkeys(kernel.do_not_specialize, "i32") | {"mask": "i64", "max_nodes": "i64"}
        types = {name: scalars.get(name, "*i32" if name in INT32 else "*i64") for name in kernel.arg_names}
        types |= {"value": "*fp64"} if "value" in types else {}
        compiled(kernel, types, found, 1)


GATHERS = [
    (1, False, False, False, False, 256),
    (16, True, True, False, False, 256),
    (4, True, False, True, False, 256),
    (1, False, True, True, True, 256),
]


def compile_gathers() -> None:
    for values in GATHERS:
        constants = dict(zip(("NUM", "MIXED", "CHECK", "HOT", "SORTED", "TILE"), values, strict=True))
        ptx = compiled(gather.gather_rows, {"calls": ("i64",) * (values[0] * gather.FIELDS.value)}, constants)
        assert "ld.global.v2.b64" in ptx, "words of 16 bytes are not read at once"
        assert "st.global.v2.b64" in ptx, "words of 16 bytes are not written at once"
    compiled(gather.find_slots, {}, {})


def compile_padding() -> None:
    compiled(padding.pad_samples, {}, {"SPARE": 32, "TILE": 1024})
    for n in (4, 16):
        calls = {"calls": ("i64",) * (n * padding.FIELDS.value)}
        compiled(padding.clear_rows, calls, {"NUM": n, "TILE": 1024})


UPDATES = [
    (Kind.STORE, True, True, True, 300, 4, 4, 256),
    (Kind.SGD, True, False, False, 3, 1, 64, 16),
    (Kind.ADAM, False, True, True, 128, 4, 8, 128),
    (Kind.ADAM, False, False, False, 128, 4, 8, 128),
    (Kind.ADAGRAD, False, True, False, 256, 1, 4, 256),
    (Kind.RMSPROP, False, True, True, 32, 4, 32, 32),
]
OF_UPDATES = ("KIND", "WIDE_IDS", "WIDE_GRADS", "WIDE_WEIGHT", "WIDTH", "LANES", "ROWS", "COLUMNS")


def compile_updates() -> None:
    for kind, *others in UPDATES:
        constants = dict(zip(OF_UPDATES, (int(kind), *others), strict=True))
        ptx = compiled(update_rows, {"numbers": ("i64",) * NUMBERS.value}, constants)
        vectors = [words for words in ("v4.b32", "v2.b32") if f"ld.global.{words}" in ptx]
        assert bool(vectors) == (constants["LANES"] == 4), constants
        assert not constants["WIDE_GRADS"] or constants["LANES"] == 1 or "v4.b32" in vectors, constants
    for wide in (True, False):
        sizes = {"WIDTH": 128, "LANES": 4, "ROWS": 8, "COLUMNS": 128}
        compiled(sum_pieces, {}, {"WIDE_IDS": not wide, "WIDE_GRADS": wide} | sizes)
        compiled(refresh_rows, {}, {"WIDE_IDS": wide, "WORDS": 256, "ROWS": 32})


TYPES = {"DTYPE": tl.float32, "ACC": tl.float32, "INDEX": tl.int64, "CHANNELS": 256, "ALIGNED": True}
HALF = TYPES | {"DTYPE": tl.bfloat16, "INDEX": tl.int32}
ODD = TYPES | {"CHANNELS": 47, "ALIGNED": False}
SUM = {"MODE": 0, "NUMBERED": False, "HEADS": 0, "SCALED": False, "CHOSEN": False, "WINDOW": 32}
TILE = {"BLOCK": 256, "EDGES": 4}
PER_HEAD = {"SLOPE": 0.2, "BLOCK": 4, "EDGES": 16, "ACC": tl.float32}
AGGREGATION = [
    ("add_segments", TYPES | SUM | TILE),
    ("add_segments", HALF | SUM | TILE | {"MODE": 1, "HEADS": 1}),
    ("add_segments", TYPES | SUM | TILE | {"NUMBERED": True, "SCALED": True, "HEADS": 1}),
    ("add_segments", ODD | SUM | {"BLOCK": 64, "EDGES": 16}),
    ("add_windows", TYPES | TILE | {"NUMBERED": True, "HEADS": 0, "SCALED": True, "CHOSEN": True, "WINDOW": 32}),
    ("max_segments", TYPES | TILE | {"NUMBERED": False, "TIES": True, "FOUND": False}),
    ("max_segments", HALF | TILE | {"NUMBERED": True, "TIES": False, "FOUND": False}),
    ("max_segments", ODD | {"BLOCK": 64, "EDGES": 16, "NUMBERED": False, "TIES": False, "FOUND": True}),
    ("add_segments", HALF | SUM | TILE | {"NUMBERED": True, "CHOSEN": True}),
    ("edge_dots", HALF | TILE | {"HEADS": 1, "SCALED": True}),
    ("add_ends", TYPES | TILE),
    ("add_ends", ODD | {"BLOCK": 64, "EDGES": 16}),
    ("add_ends", HALF | {"CHANNELS": 4, "ALIGNED": False, "BLOCK": 4, "EDGES": 64}),
    *(
        (name, PER_HEAD | {"DTYPE": dtype, "INDEX": index, "HEADS": heads, "NUMBERED": own, "OWN": own} | ends)
        for name in ("softmax_segments", "softmax_gradients")
        for dtype, index, heads, own in (
            (tl.float32, tl.int64, 4, False),
            (tl.bfloat16, tl.int32, 3, True),
            (tl.float32, tl.int64, 3, True),
        )
        for ends in ({"ENDS": False}, {"ENDS": True, "OWN": False})
    ),
]


def compile_aggregation() -> None:
    for name, constants in AGGREGATION:
        kernel = next(getattr(module, name) for module in (aggregation, attention) if hasattr(module, name))
        ptx = compiled(kernel, {}, constants, 1)
        if constants.get("ALIGNED"):
            assert "ld.global.v4.b32" in ptx, f"{name} does not read 16 bytes at once"


def compile_captured_inputs() -> None:
    for count_of_tensors in (1, 8, 32):
        targets = {"targets": ("i64",) * (count_of_tensors * capture.FIELDS.value)}
        ptx = compiled(capture.copy_tensors, targets, {"NUM": count_of_tensors})
        assert "ld.global.v2.b64" in ptx, "16 bytes are not read at once"
    for width in (16, 128):
        compiled(capture.fetch_addresses, {}, {"SLOTS": 256, "WIDTH": width}, 1)


if __name__ == "__main__":
    with showing_compilation():
        compile_sampling()
    for compile_others in (compile_hgt, compile_gathers, compile_padding, compile_updates, compile_aggregation,
                           compile_captured_inputs):  # fmt: skip
        compile_others()
