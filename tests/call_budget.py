"""Counts the calls of manyhop's Python functions that a batch takes: what the host does, without a clock."""

import gc
import itertools
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parents[1]
_OURS = (f"{ROOT}/plugin/", f"{ROOT}/adapters/")
_INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")  # calls up to Python 3.11 only
WARM_UP, BATCHES = 16, 64
IN_THREAD = {"Group.start", "Group.run_one"}  # what threads do, where there are some
CALLS_OF_EXCHANGES, OPERATORS_OF_EXCHANGES = 60.5, 4.0
"""What a thread that completes batches one by one, as ranks exchange rows, may take for each, of any adapter."""


def count_calls(loader: Iterable[Any], within: Collection[str] = ()) -> Counter[str]:
    """Return the calls per function that further batches of a second epoch take in the caller's thread.

    Args:
        loader: makes its batches in the caller's thread.
        within: count these functions and what they call; default: all.
    """
    calls: Counter[str] = Counter()
    depth = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal depth
        code = frame.f_code
        path = code.co_filename
        if not path.startswith(_OURS):
            return
        if code.co_qualname in within:
            depth += {"call": 1, "return": -1}.get(event, 0)
        counts = event == "call" and (depth > 0 or not within)
        if counts and "/kernels/" not in path and code.co_name not in _INLINED:
            calls[f"{path.removeprefix(str(ROOT))}: {code.co_qualname}"] += 1

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that share a gather would share its calls, as it happens
    for _ in loader:
        pass
    batches = iter(loader)
    assert len(list(itertools.islice(batches, WARM_UP))) == WARM_UP
    gc.collect()
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        taken = sum(1 for _ in itertools.islice(batches, BATCHES))
    finally:
        sys.setprofile(before)
        gc.enable()
        torch.set_num_threads(threads)
    assert taken == BATCHES
    for _ in batches:
        pass
    return calls


class _Operators(TorchDispatchMode):
    """Counts the operators of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def count_operators(loader: Iterable[Any]) -> Counter[str]:
    """Return the calls per operator of torch that a second epoch takes in the caller's thread."""
    for _ in loader:
        pass
    with _Operators() as operators:
        for _ in loader:
            pass
    return operators.calls


def check_calls(loader: Iterable[Any], budget: float, within: Collection[str] = ()) -> None:
    """Check that a further batch takes at most ``budget`` calls, and 2 % for what a later change may need."""
    calls = count_calls(loader, within)
    per_batch = calls.total() / BATCHES
    most = "\n".join(f"{count / BATCHES:8.2f}  {name}" for name, count in calls.most_common())
    assert per_batch <= budget * 1.02, f"{per_batch:.2f} calls per batch, the budget is {budget}:\n{most}"


def check_exchanging(loader: Iterable[Any], num_batches: int, calls: float = CALLS_OF_EXCHANGES) -> None:
    """Check what the thread that exchanges rows does for each batch of a loader that completes them one by one."""
    check_calls(loader, calls, IN_THREAD)
    operators = count_operators(loader)
    assert operators.total() <= OPERATORS_OF_EXCHANGES * num_batches, operators


class Served:
    """Batches of lists of seeds, one after the other, outside of any epoch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return (self.loader.batch([7, 40, 7], key=(1, 0, i)) for i in range(WARM_UP + BATCHES))
