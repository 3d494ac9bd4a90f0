"""The shuffle of an epoch, compiled: equal to ``manyhop.pipeline.permute``."""

from __future__ import annotations

import numpy as np

from manyhop.sampling._cpu_compile import kernel, u64
from manyhop.sampling._cpu_random import mix

_U0, _U1, _U2 = (np.uint64(x) for x in (0, 1, 2))


@kernel("void(uint64, uint64, uint64, uint64, uint64, uint64, uint64, uint64)")
def permute_positions(
    address: int,
    count: int,
    n: int,
    low_bits: int,
    high_bits: int,
    round_keys: int,
    rounds: int,
    swap: int,
) -> None:
    """Replace ``[count] uint64`` positions below ``n`` at an address by their images.

    Args:
        address, count: of the positions.
        n: number of elements.
        low_bits, high_bits: width of the two halves of a number.
        round_keys, rounds: address of the ``[rounds] uint64`` keys of a pass.
        swap: 1 if the results 0 and 1 are to be swapped, else 0.
    """
    x, keys = u64(address, count), u64(round_keys, rounds)
    low_mask, high_mask = (_U1 << low_bits) - _U1, (_U1 << high_bits) - _U1
    for i in range(count):
        value = x[i]
        while True:
            low, high = value & low_mask, value >> low_bits
            for turn in range(rounds):
                if turn & _U1 == _U0:
                    low ^= mix(keys[turn] + high) & low_mask
                else:
                    high ^= mix(keys[turn] + low) & high_mask
            value = (high << low_bits) | low
            if value < n:
                break
        x[i] = value ^ swap if value < _U2 else value
