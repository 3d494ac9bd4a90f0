"""Arguments by which GraphBolt overlaps and caches. Here they are checked, and have no other effect."""

from __future__ import annotations

from manyhop.errors import InputError

_COUNTS = {"num_gpu_cached_edges": 0, "gpu_cache_threshold": 0, "max_uva_threads": 1}
"""Those that are numbers, and the least that they can be."""


def check_hints(**hints: object) -> None:
    """Check the values of hints by their names.

    Raises:
        InputError: a value of another kind, or ``cooperative``, which is no hint: it changes who samples what.
    """
    for name, value in hints.items():
        if name in _COUNTS:
            if isinstance(value, bool) or not isinstance(value, int) or value < _COUNTS[name]:
                raise InputError(f"Expected {name} as an integer of at least {_COUNTS[name]}, got {value!r}.")
        elif not isinstance(value, bool):
            raise InputError(f"Expected {name} as True or False, got {value!r}.")
    if hints.get("cooperative"):
        raise InputError(
            "Expected cooperative=False, got True. Leave it out: each rank samples its own minibatches. "
            "To exchange fewer rows, pass seed_parts to the DistributedItemSampler."
        )
