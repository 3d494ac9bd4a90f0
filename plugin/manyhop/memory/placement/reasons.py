"""Reasons for each placement, and remedies where something does not fit, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from manyhop.memory.placement.needs import GPU_RESERVE, RESERVE, Hardware, Item, Needs, on_gpu
from manyhop.memory.places import ALIASES, Place
from manyhop.system.units import in_units


def reason(item: Item, place: Place, hardware: Hardware, *, asked: bool, mapped: bool, cache: int) -> str:
    """Why ``item`` is in this place: because it was ``asked`` for, because it fits, or because nothing better does."""
    size, part = in_units(item.nbytes), in_units(on_gpu(item, place, hardware))
    gpus = "the GPU" if hardware.world_size == 1 else "each GPU"
    hot = f" {in_units(cache)} of hot rows are kept on {gpus}." if cache else ""
    if item.on_host:
        return f"{size} are sharded over the memory of all nodes, page-locked; GPUs exchange rows once per batch.{hot}"
    if place in item.resident:
        return f"{size} are {_RESIDENT[place].format(gpus=gpus)} already.{hot}"
    if place == "device":
        return f"{size} {'are asked for' if asked else 'fit'} on {gpus}."
    why = f"{size} do not fit beside the rest in the {in_units(hardware.gpu_usable)} that are usable on {gpus}"
    if asked:
        why = f"{size}, as asked"
    elif place == "host":
        why += ", nor page-locked in the memory of the node"
    home = "their file" if mapped else "the memory of the node"
    pointers = f", but for {part} of column pointers, which reside on {gpus}" if item.pointer_bytes else ""
    is_topology = item.distributed_bytes is not None
    distributed = _DISTRIBUTED[is_topology].format(part=part)
    how = {
        "sharded": f"each of {hardware.gpus_per_node} GPUs holds {part}, where the others read.",
        "distributed": f"each of {hardware.world_size} GPUs {distributed}.",
        "pinned": f"they are page-locked in {home}, where {gpus} reads{pointers}.",
        "host": f"they stay in {home}, where only the CPU reads.",
    }[place]
    if is_topology and place == "host":
        how = f"they stay in {home}; the CPU samples them and sends the samples.{_without_cugraph(item, hardware)}"
    return f"{why}: {how}{hot}"


def _without_cugraph(item: Item, hardware: Hardware) -> str:
    """Return what would have the GPUs sample a topology that is too large for a node, in a sentence."""
    if not item.can_distribute or hardware.world_size == 1:
        return ""
    if not hardware.together:
        return " With distributed=True, cuGraph may sample it on all GPUs."
    return "" if hardware.cugraph else " With cuGraph installed, all GPUs could hold and sample it."


_DISTRIBUTED = {
    False: "holds {part}; ranks exchange rows, once per batch",
    True: "takes {part} while cuGraph builds it; all ranks then call cuGraph together",
}
"""How what is distributed is held and read, by whether it is a topology."""

_RESIDENT = {
    "device": "on {gpus}",
    "sharded": "spread over the GPUs of the node, which read each other's memory,",
    "pinned": "page-locked in the memory of the node, where {gpus} reads,",
    "host": "in the memory of the node, where only the CPU reads,",
    "distributed": "spread over the GPUs of all nodes, whose ranks exchange rows once per batch,",
}


def too_much(
    items: Mapping[str, Item], places: Mapping[str, Place], hardware: Hardware, mode: Place, auto: bool
) -> str:
    """What ``places``, the most modest of this mode, lack, and what would help: among it ``placement="auto"``, where
    ``auto`` finds that it fits.
    """
    remedies, meant = [], ALIASES.get(mode, mode)
    if auto:
        remedies.append("pass placement='auto', with which all fits")
    shortages = []
    lacking = Needs(items, places, hardware).lacking()
    if "gpu" in lacking:
        needed, usable = lacking["gpu"]
        shortages.append(
            f"{in_units(needed)} on each GPU, where {in_units(usable)} are usable ({1 - GPU_RESERVE:.0%} of what is "
            "free)"
        )
        remedies.append(f"use GPUs with {in_units(_free_for(needed, GPU_RESERVE))} of free memory")
    if "host" in lacking:
        needed, usable = lacking["host"]
        shortages.append(
            f"{in_units(needed)} in the memory of each node, where {in_units(usable)} are usable ({1 - RESERVE:.0%} of "
            "what is free)"
        )
        remedies.append(f"use nodes with {in_units(_free_for(needed, RESERVE))} of free memory")
    if "pinned" in lacking:
        needed, limit = lacking["pinned"]
        shortages.append(f"{in_units(needed)} of page-locked memory, of which a process may have {in_units(limit)}")
        remedies.append("raise that limit")
    stuck = [item.name for item in items.values() if not item.can_map and not item.in_memory]
    if "host" in lacking and stuck and meant in ("auto", "host"):
        remedies.append(
            f"convert what cannot be mapped ({', '.join(stuck)}) with `manyhop convert` or manyhop.files.write, and "
            "leave it in its files"
        )
    if meant in ("auto", "device") and "gpu" in lacking and hardware.world_size > 1 and not hardware.together:
        remedies.append("let the GPUs hold a part each (distributed=True)")
    remedies.append("store features as float16 or bfloat16")
    return f"placement={mode!r} needs {' and '.join(shortages)}. One of these may help: {'; '.join(remedies)}."


def _free_for(needed: int, reserve: float) -> int:
    return int(needed / (1 - reserve)) + 1
