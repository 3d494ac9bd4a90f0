"""The ends of graphs: all tensors of a batch arrive, however they reside in memory, and results are the caller's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from manyhop_train.capture.ends import Buffers, Ends
from manyhop_train.capture.recorder import CUDARecorder

DEVICE = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class Again:
    """A recorder for CPUs, which calls the function again."""

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        result = function()

        def replay() -> None:
            again = function()
            for old, new in zip(pytree.tree_leaves(result), pytree.tree_leaves(again), strict=True):
                if isinstance(old, Tensor):
                    old.copy_(new)

        return replay, result


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
    """A graph of a function of the tensors of batches."""

    def __init__(self, tensors: list[Tensor], function: Callable[[list[Tensor]], Any]) -> None:
        self.buffers = Buffers(tensors)
        self.ends: Ends[Any] = Ends(self.buffers)
        recorder: Any = CUDARecorder(DEVICE) if DEVICE.type == "cuda" else Again()
        self.ends.write(tensors)
        self.replay, result = recorder.record(self.ends.recording(lambda: function(self.buffers.tensors)))
        self.ends.recorded(result)

    def __call__(self, tensors: list[Tensor]) -> Any:
        kept = self.ends.write(tensors)
        self.replay()
        del kept
        return self.ends.results()


@pytest.mark.parametrize("times", [1, 3])
def test_batches_are_copied(times: int) -> None:
    graph = Graph(batch(0) * times, lambda tensors: (tensors[0] + 1,))
    places = [t.data_ptr() for t in graph.buffers.tensors]
    for seed in (1, 2):
        expected = [t for i in range(times) for t in batch(seed + i)]
        assert torch.equal(graph(expected)[0], expected[0] + 1)
        assert [t.data_ptr() for t in graph.buffers.tensors] == places
        assert all(torch.equal(got, want) for got, want in zip(graph.buffers.tensors, expected, strict=True))
        assert not any(t.requires_grad for t in graph.buffers.tensors)


def results(tensors: list[Tensor]) -> tuple[Any, ...]:
    """Small and large ones, of several words and layouts, one of them twice, and what is no tensor."""
    x, a = tensors
    total = x.sum()
    pairs = torch.stack([a[:6], -a[:6]])
    return total, 3, pairs, pairs.T, x * 2, a[0] > 0, total, a[:0], a[:3].to(torch.complex64), a[:4].half() / 2


def of(seed: int) -> list[Tensor]:
    return [torch.arange(500.0, device=DEVICE) + seed, torch.arange(10, device=DEVICE) * (-1) ** seed + seed]


def test_results_are_those_of_each_replay_and_stay() -> None:
    graph = Graph(of(0), results)
    found = [graph(of(seed)) for seed in range(150)]  # more than arguments and memory are prepared for at once
    for seed, got in enumerate(found):
        for one, want in zip(got, results(of(seed)), strict=True):
            assert type(one) is type(want)
            if isinstance(want, Tensor):
                assert (one.shape, one.dtype, one.device) == (want.shape, want.dtype, want.device)
                assert torch.equal(one, want)
            else:
                assert one == want
    versions = [got[0]._version for got in found]
    found[3][0].add_(1)
    assert found[3][0].item() == results(of(3))[0].item() + 1
    assert [got[0]._version for got in found] == [v + (i == 3) for i, v in enumerate(versions)]
    assert torch.equal(found[4][0], results(of(4))[0])


def test_a_single_tensor() -> None:
    graph = Graph(of(0), lambda tensors: tensors[1].sum())
    losses = [graph(of(seed)) for seed in range(70)]
    assert [loss.item() for loss in losses] == [of(seed)[1].sum().item() for seed in range(70)]


def test_after_an_interrupt_replays_get_their_own_batches() -> None:
    graph = Graph(of(0), results)
    kept = [graph(of(seed))[0] for seed in range(5)]
    graph.ends.write(of(5))  # is not launched
    kept.append(graph(of(6))[0])
    graph.ends.write(of(7))
    graph.replay()  # whose results nobody asks for
    kept += [graph(of(seed))[0] for seed in range(8, 80)]
    seeds = [*range(5), 6, *range(8, 80)]
    assert [float(one) for one in kept] == [float(of(seed)[0].sum()) for seed in seeds]


def test_graphs_that_are_gone_leave_their_arguments_to_others() -> None:
    for number in range(3):
        graph = Graph(of(0), results)
        for seed in range(40):
            last = graph(of(number + seed))
        del graph
        assert float(last[0]) == float(of(number + 39)[0].sum())
