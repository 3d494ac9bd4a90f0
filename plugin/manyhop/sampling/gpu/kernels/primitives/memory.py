"""Reads through addresses, of ids of either width."""

import triton
import triton.language as tl


@triton.jit
def load_ids(address, wide, index, mask):
    """``int64`` values of an int32 or int64 array at ``address``."""
    if wide != 0:
        ids = tl.load(address.to(tl.pointer_type(tl.int64)) + index, mask=mask, other=0)
    else:
        ids = tl.load(address.to(tl.pointer_type(tl.int32)) + index, mask=mask, other=0).to(tl.int64)
    return ids
