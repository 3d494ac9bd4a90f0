"""Gathering where there are several GPUs: the index says where the rows go."""

import pytest
import torch

from manyhop.errors import FeatureError
from manyhop.features import Checks, RowRequest, gather, pin

pytestmark = pytest.mark.multigpu


@pytest.mark.parametrize("current", [0, 1])
def test_rows_go_to_the_gpu_of_the_index(current: int) -> None:
    x = torch.randn(1000, 24)
    pinned = x.clone()
    pin(pinned)
    sources = [x.to("cuda:0"), x.to("cuda:1"), pinned, x]
    with torch.cuda.device(current):
        requests = [
            RowRequest(source, torch.randint(0, 1000, (300,), device=f"cuda:{k}"), bound=1000)
            for source in sources
            for k in (0, 1)
        ]
        for got, request in zip(gather(requests), requests, strict=True):
            assert got.device == request.index.device
            assert torch.equal(got.cpu(), x[request.index.cpu()])
        assert torch.cuda.current_device() == current


def test_row_numbers_are_checked_on_every_gpu() -> None:
    checks = Checks()
    for k in (0, 1):
        gather([(torch.zeros(10, 4, device=f"cuda:{k}"), torch.tensor([9, 10 * k], device=f"cuda:{k}"))], checks=checks)
    with pytest.raises(FeatureError, match=r"\[0, 10\) .* got 10 \(at position 1\)"):
        checks.ask(wait=True)
