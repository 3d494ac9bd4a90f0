"""What limits the speed of an epoch, in a line."""

from __future__ import annotations

import math


def advise(
    *,
    batches: int,
    making: dict[str, float],
    waited: float,
    step: float,
    num_workers: int,
    cores: int,
    on_gpu: bool = False,
) -> str:
    """One line about what limits the speed.

    Args:
        batches: batches handed out.
        making: stage of making batches -> its seconds, summed over threads.
        waited: seconds the user waited, without the first batch.
        step: seconds of the user's own steps.
        num_workers: sampling threads of the loader.
        cores: cores that the process may use.
        on_gpu: sampling and gathering are done by a GPU.
    """
    if batches < 2:
        return "too few batches to judge"
    if waited <= 0.05 * (waited + step):
        return "your step is the bottleneck: the loader hides behind it"
    worst = max(making, key=making.__getitem__)
    made = sum(making.values())
    # Threads that keep up with the step: as many as batches are made in the time of one step, and one in ten to spare.
    wanted = min(cores, math.ceil(1.1 * made / step) if step > 0 else cores)
    share = f"{worst} is the bottleneck ({making[worst] / made:.0%} of making a batch)" if made else ""
    if not share:
        return f"{waited / (waited + step):.0%} of the time is waiting: use num_workers={max(1, min(2, cores))}"
    remedy = {
        "sampling": "fewer hops or smaller fanouts",
        "gathering": "a smaller feature dtype (float16, bfloat16), or fewer attributes",
        "assembling": "a cheaper transform",
    }[worst]
    if on_gpu:
        return f"{share}: {remedy}"
    if num_workers == 0 and wanted == 1 < cores:
        return f"your step takes {step / (waited + step):.0%} of the time: num_workers=1 hides the rest behind it"
    if wanted > num_workers:
        return f"{share}: num_workers={wanted}"
    if wanted == cores:
        return f"{share} and all {cores} cores are in use: {remedy}"
    return f"{share} although num_workers={num_workers} should do: other programs may use the cores; else {remedy}"
