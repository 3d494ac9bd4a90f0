"""Helpers for padded batches: equal to torch on the rows that are no padding."""

import pytest
import torch
import torch.nn.functional as F

from manyhop.errors import InputError
from manyhop.masks import MaskedBatchNorm, masked_mean

MASK = torch.arange(40) % 3 != 1


def rows(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_means():
    logits, target = rows(40, 5), torch.arange(40) % 5
    losses = F.cross_entropy(logits, target, reduction="none")
    assert torch.allclose(masked_mean(losses, MASK), F.cross_entropy(logits[MASK], target[MASK]))
    right = logits.argmax(1) == target
    assert torch.allclose(masked_mean(right, MASK), right[MASK].float().mean())
    assert torch.allclose(masked_mean(logits, MASK), logits[MASK].mean(0))
    assert masked_mean(losses, torch.zeros(40, dtype=torch.bool)) == 0
    losses[~MASK] = torch.nan
    assert masked_mean(losses, MASK).isfinite()


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False, "momentum": 0.3}]
)
def test_batch_norm(options):
    theirs = torch.nn.BatchNorm1d(6, **options)
    ours = MaskedBatchNorm(6, **options)
    ours.load_state_dict(theirs.state_dict())
    for i in range(6):
        if i == 4:
            ours.eval(), theirs.eval()
        x = rows(40, 6) * (i + 1) + i
        with torch.no_grad():
            x[~MASK] = torch.nan
        mine, other = x.clone().requires_grad_(), x[MASK].clone().requires_grad_()
        out, expected = ours(mine, MASK), theirs(other)
        assert torch.allclose(out[MASK], expected, atol=1e-5)
        assert not out[~MASK].any()
        out.square().sum().backward()
        expected.square().sum().backward()
        assert torch.allclose(mine.grad[MASK], other.grad, atol=1e-4)
        assert not mine.grad[~MASK].any()
        for name, value in theirs.state_dict().items():
            assert torch.allclose(ours.state_dict()[name], value, atol=1e-5), name
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-3)
    assert ours(rows(40, 6, dtype=torch.bfloat16), MASK).dtype == torch.bfloat16 or "affine" in options


def test_wrong_masks():
    norm = MaskedBatchNorm(6)
    for mask in (MASK.long(), MASK[:39], MASK[:, None]):
        for call in (lambda mask=mask: masked_mean(rows(40), mask), lambda mask=mask: norm(rows(40, 6), mask)):
            with pytest.raises(InputError, match="Expected a mask of bools, one for each row"):
                call()
    with pytest.raises(InputError, match=r"an input \[num_rows, 6\], got \[40, 5\]"):
        norm(rows(40, 5), MASK)
