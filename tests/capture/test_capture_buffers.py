"""Where graphs read batches: all tensors of a batch arrive, however they reside in memory."""

from pathlib import Path

import pytest
import torch
from kernel_scripts import assert_compiles
from torch import Tensor

from manyhop.capture import Buffers

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def batch(seed: int) -> list[Tensor]:
    """Tensors of several words, alignments and layouts; one has no entries, some take several programs."""
    draw = torch.Generator(DEVICE).manual_seed(seed)

    def ints(*size: int) -> Tensor:
        return torch.randint(-9, 9, size, generator=draw, device=DEVICE)

    ids, masks = ints(9001), ints(40_003) > 0
    return [
        *ids.unsafe_split_with_sizes([1, 4000, 5000]),
        *masks.unsafe_split_with_sizes([3, 40_000]),
        ints(130, 64).float(),
        ints(7, 3).half(),
        ints(50, 2).T,
        ints(2, 0),
        ints(5).float().requires_grad_(),
        ints(3).to(torch.complex64),
        ints(1)[0],
    ]


@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
@pytest.mark.parametrize("times", [1, 3])
def test_batches_are_copied(kernels: bool, times: int, request: pytest.FixtureRequest) -> None:
    if kernels:
        pytest.importorskip("triton")
        request.getfixturevalue("kernels_everywhere")
    buffers = Buffers(batch(0) * times)
    places = [t.data_ptr() for t in buffers.tensors]
    for seed in (1, 2):
        expected = [t for i in range(times) for t in batch(seed + i)]
        buffers.fill(expected)
        assert [t.data_ptr() for t in buffers.tensors] == places
        assert all(torch.equal(got, want) for got, want in zip(buffers.tensors, expected, strict=True))
        assert not any(t.requires_grad for t in buffers.tensors)


def test_the_kernel_compiles(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    assert_compiles(Path(__file__).with_name("copy_compile.py"), tmp_path)
