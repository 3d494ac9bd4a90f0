"""Placement of data that CPUs read: memory of the process or the node, files, or parts on each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhop.arguments import at_least_one
from manyhop.errors import CapacityError
from manyhop.memory.placement.needs import RESERVE, Item, check_names, share_of
from manyhop.memory.places import Place
from manyhop.system.units import in_units


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The place of one item, and the reason."""

    item: Item
    place: Place
    reason: str
    """A sentence or two."""
    cache_bytes: int = 0
    """Bytes of each GPU that hold this feature's hot rows, the most requested ones; 0: none."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Decision of :func:`decide`; ``str`` describes it in sentences."""

    topology: Choice
    features: tuple[Choice, ...]
    """In the given order."""
    host_usable: int
    """Bytes of each node that are used."""
    host_bytes: int
    """Bytes that each node needs in addition (files that remain files need none)."""

    def place_of(self, feature: str) -> Place:
        """Return the place of the feature of this name."""
        return next(choice.place for choice in self.features if choice.item.name == feature)

    def _lines(self) -> list[str]:
        lines = [f"{c.item.name}: {c.place}. {c.reason}" for c in (self.topology, *self.features)]
        return [*lines, f"Needed per node: {in_units(self.host_bytes)} of {in_units(self.host_usable)} usable."]

    def __str__(self) -> str:
        return "\n".join(self._lines())


def decide(
    topology: Item,
    features: Sequence[Item],
    *,
    memory: int,
    ranks_per_node: int = 1,
    num_nodes: int = 1,
    can_shard: bool = True,
) -> Placement:
    """Place topology and features.

    Data is placed in memory if it fits: once per node, or in the process if that is the only rank of its node.
    Otherwise the largest features are sharded over the nodes, as few as possible. If that is not enough, the largest
    items remain in their files. The topology, which is read most, is the last of them, and is never sharded.

    Args:
        topology: the tables that samplers read.
        features: all other tensors.
        memory: free bytes of each node.
        ranks_per_node: processes on each node.
        num_nodes: nodes (machines).
        can_shard: whether the loaders run in lockstep (``distributed=True``), which sharded features need.

    Raises:
        CapacityError: not all fits; the message names remedies.
        InputError: numbers that make no sense.
    """
    at_least_one(memory=memory, ranks_per_node=ranks_per_node, num_nodes=num_nodes)
    check_names(features)
    usable = int(memory * (1 - RESERVE))
    shards = num_nodes if can_shard else 1
    mapped = _fewest_mapped(topology, features, usable, shards)
    if mapped is None:
        raise CapacityError(_remedies(topology, features, usable, num_nodes, can_shard))
    in_memory = sorted((item for item in features if item.name not in mapped), key=_size, reverse=True)
    room = usable - (0 if topology.name in mapped else topology.nbytes)
    sharded = _fewest_sharded(in_memory, room, shards)
    assert sharded is not None
    needed = usable - room + sum(share_of(i.nbytes, shards) if i.name in sharded else i.nbytes for i in in_memory)

    def choose(item: Item) -> Choice:
        lacking = f"{in_units(item.nbytes)} do not fit in the {in_units(usable)} that are usable beside the rest"
        if item.name in mapped:
            reason = (
                f"{lacking}: rows are read from the file, which the system keeps in the remaining "
                f"{in_units(memory - needed)} as far as they go."
            )
            return Choice(item=item, place="mapped", reason=reason)
        if item.name in sharded:
            reason = (
                f"{lacking}: each of {num_nodes} nodes holds {in_units(share_of(item.nbytes, shards))} of them. "
                "Loaders need distributed=True."
            )
            return Choice(item=item, place="sharded", reason=reason)
        if ranks_per_node == 1:
            reason = f"{in_units(item.nbytes)} fit, and no other rank of the node needs them."
            return Choice(item=item, place="process", reason=reason)
        reason = f"{in_units(item.nbytes)} fit once per node, and its {ranks_per_node} ranks share them."
        return Choice(item=item, place="shared", reason=reason)

    return Placement(
        topology=choose(topology),
        features=tuple(choose(item) for item in features),
        host_usable=usable,
        host_bytes=needed,
    )


def _fewest_mapped(topology: Item, features: Sequence[Item], usable: int, shards: int) -> set[str] | None:
    """Return the names of the items that remain in files so that others fit: as few as possible, the topology last."""
    mappable = sorted((item for item in features if item.can_map), key=_size, reverse=True)
    mappable += [topology] if topology.can_map else []
    for count in range(len(mappable) + 1):
        mapped = {item.name for item in mappable[:count]}
        rest = sorted((item for item in features if item.name not in mapped), key=_size, reverse=True)
        room = usable - (0 if topology.name in mapped else topology.nbytes)
        if _fewest_sharded(rest, room, shards) is not None:
            return mapped
    return None


def _fewest_sharded(features: Sequence[Item], room: int, shards: int) -> set[str] | None:
    """Names of the first of ``features`` that can be cut into ``shards``, as many as make all fit in ``room``."""
    needed = sum(item.nbytes for item in features)
    sharded: set[str] = set()
    for item in features if shards > 1 else ():
        if needed <= room:
            break
        if item.can_shard:
            needed -= item.nbytes - share_of(item.nbytes, shards)
            sharded.add(item.name)
    return sharded if needed <= room else None


def _size(item: Item) -> int:
    return item.nbytes


def _remedies(topology: Item, features: Sequence[Item], usable: int, num_nodes: int, can_shard: bool) -> str:
    whole = [item for item in (topology, *features) if item is topology or not item.can_shard]
    fixed = sum(item.nbytes for item in whole if not item.can_map)
    loose = sum(item.nbytes for item in features if item.can_shard and not item.can_map)
    parts = num_nodes if can_shard else 1
    least = int((fixed + share_of(loose, parts)) / (1 - RESERVE)) + 1
    stuck = [item.name for item in (topology, *features) if not item.can_map]
    remedies = [
        f"convert what cannot be mapped ({', '.join(stuck)}) with `manyhop convert` or manyhop.files.write, and leave "
        "it in its files",
        f"use nodes with {in_units(least)} of free memory",
    ]
    if usable > fixed and loose:
        more = -(-loose // (usable - fixed))
        if more > parts:
            remedies.append(f"shard the features over {more} nodes or more (loaders with distributed=True)")
    if loose:
        remedies.append("store features as float16 or bfloat16")
    return (
        f"Topology and features need {in_units(topology.nbytes + sum(map(_size, features)))}, of which "
        f"{in_units(fixed + share_of(loose, parts))} must be in the memory of each node; {in_units(usable)} are usable "
        f"({1 - RESERVE:.0%} of what is free). One of these helps: {'; '.join(remedies)}."
    )
