"""CUDA graphs that the sampler records: beside other threads, from any thread, and where recording fails."""

import threading
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from manyhop.errors import ManyhopError
from manyhop.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeInput, build_graph, place
from manyhop.sampling import BatchKey, CPUSampler, GPUSampler, NeighborSpec, NodeRequest
from manyhop.sampling.gpu.launch import recording
from manyhop.sampling.gpu.launch.recording import Enqueued, Recording, record

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)


def in_thread(work: Any) -> Any:
    """What ``work`` returns in a thread that has not used the GPU before."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_a_recording_is_launched_again_and_again() -> None:
    x = torch.zeros(1000, device=DEVICE)
    recording = Recording(lambda: x.add_(1), DEVICE)
    stream = torch.cuda.current_stream()
    recording.launch(stream)
    recording.launch(stream)
    assert x.eq(2).all()
    in_thread(lambda: recording.launch(stream))
    assert x.eq(3).all()
    again = in_thread(lambda: Recording(lambda: x.add_(10), DEVICE))
    again.launch(stream)
    assert x.eq(13).all()


def test_random_numbers_are_drawn_elsewhere_meanwhile() -> None:
    x, done = torch.zeros(10, device=DEVICE), threading.Event()

    def record() -> int:
        try:
            for _ in range(200):
                Recording(lambda: [x.add_(1) for _ in range(20)], DEVICE)
        finally:
            done.set()
        return 1

    y = torch.ones(100, device=DEVICE)
    thread = threading.Thread(target=record)
    thread.start()
    while not done.is_set():
        torch.nn.functional.dropout(y)
        torch.empty(1 << 20, device=DEVICE)
    thread.join()
    assert x.eq(0).all()  # what was recorded was not done


def test_a_recording_that_fails_ends() -> None:
    x = torch.zeros(10, device=DEVICE)

    def fail() -> None:
        x.add_(1)
        raise ValueError("in the middle")

    for _ in range(3):
        with pytest.raises(ValueError, match="in the middle"):
            Recording(fail, DEVICE)
    x.add_(1)
    Recording(lambda: x.add_(1), DEVICE).launch(torch.cuda.current_stream())
    assert x.eq(2).all()


@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_recording_that_cuda_gives_up_is_begun_again(times: int) -> None:
    x, attempts = torch.zeros(10, device=DEVICE), 0

    def work() -> None:
        nonlocal attempts
        attempts += 1
        x.add_(1)
        if attempts <= times:
            torch.cuda.current_stream().synchronize()  # not allowed on a stream that records
        x.add_(1)

    made = record(work, DEVICE)
    assert isinstance(made, Recording if times < 3 else Enqueued)
    assert attempts == min(times + 1, 3)
    if times < 3:
        made.launch(torch.cuda.current_stream())
        assert x.eq(2).all()


def test_where_cuda_refuses_kernels_are_enqueued_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: Any, device: torch.device) -> None:
        raise ManyhopError("CUDA could not begin to record: ERROR (801).")

    monkeypatch.setattr(recording, "Recording", refuse)
    row, col = torch.randint(0, 5000, (2, 50_000), generator=torch.Generator().manual_seed(0))
    graph = build_graph({HOMOGENEOUS_NODE: 5000}, {HOMOGENEOUS_EDGE: EdgeInput(row=row, col=col)})
    spec = NeighborSpec(fanouts={HOMOGENEOUS_EDGE: (5, 3)})
    gpu, cpu = GPUSampler(place(graph, DEVICE), spec, device=DEVICE), CPUSampler(graph, spec)
    requests = [NodeRequest(key=BatchKey(1, 0, b), seeds={HOMOGENEOUS_NODE: torch.arange(300)}) for b in range(4)]
    for _ in range(3):  # sizes are learned, then memory is taken ahead of them
        pending = [gpu.begin(requests), gpu.begin(requests)]
        for samples in (pending[0].finish(), pending[1].finish()):
            for got, expected in zip(samples, map(cpu.sample, requests), strict=True):
                for name in ("node", "row", "col", "edge_id"):
                    for key, value in getattr(expected, name).items():
                        assert torch.equal(getattr(got, name)[key].cpu(), value)
