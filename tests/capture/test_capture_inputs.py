"""Inputs of graphs: all tensors of a batch arrive, however they reside in memory, and replays get their own batches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from manyhop_train.capture.graphs import CUDARecorder, Inputs

DEVICE = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(params=["torch", "kernels"], autouse=True)
def copied_by(request: pytest.FixtureRequest) -> None:
    """Torch's operators copy, or kernels do."""
    if request.param == "kernels":
        pytest.importorskip("triton")
        request.getfixturevalue("kernels_everywhere")
    elif DEVICE.type == "cuda":
        request.getfixturevalue("monkeypatch").setattr("manyhop.system.triton_compiler.runs_on", lambda device: False)


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


class Graph:
    """A graph that copies a batch and returns its sum. On CPUs, the copies are enqueued again."""

    def __init__(self, tensors: list[Tensor], inputs: Inputs | None = None) -> None:
        self.inputs = Inputs(tensors) if inputs is None else inputs
        self.inputs.write(tensors)
        self.replay: Any = self.run
        if DEVICE.type == "cuda":
            self.replay, self.result = CUDARecorder(DEVICE).record(self.run)
        self.inputs.rewind()

    def run(self) -> Tensor:
        self.inputs.copy()
        self.result = self.inputs.tensors[0].sum()
        return self.result

    def __call__(self, tensors: list[Tensor]) -> float:
        self.inputs.write(tensors)
        self.replay()
        self.inputs.launched()
        return float(self.result)


@pytest.mark.parametrize("times", [1, 3])
def test_batches_are_copied(times: int) -> None:
    graph = Graph(batch(0) * times)
    places = [t.data_ptr() for t in graph.inputs.tensors]
    for seed in (1, 2):
        expected = [t for i in range(times) for t in batch(seed + i)]
        assert graph(expected) == float(expected[0].sum())
        assert [t.data_ptr() for t in graph.inputs.tensors] == places
        assert all(torch.equal(got, want) for got, want in zip(graph.inputs.tensors, expected, strict=True))
        assert not any(t.requires_grad for t in graph.inputs.tensors)


def of(seed: int) -> list[Tensor]:
    return [torch.arange(500.0, device=DEVICE) + seed]


def test_replays_get_their_own_batches_also_after_an_interrupt() -> None:
    """More of them than there are slots; graphs of a size share the inputs, and deleted ones leave theirs to others."""
    for number in range(2):
        graph = Graph(of(0))
        for seed in range(300):
            assert graph(of(number + seed)) == float(of(number + seed)[0].sum())
        other = Graph(of(0), graph.inputs)
        graph.inputs.write(of(5))  # is not launched
        for seed in range(6):
            assert other(of(seed)) == float(of(seed)[0].sum())
        graph.inputs.write(of(7))
        graph.replay()  # whose result nobody asks for
        for seed in range(8):
            assert graph(of(seed)) == float(of(seed)[0].sum())
        del graph, other
