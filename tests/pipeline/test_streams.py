"""What of the hand-over from stream to stream can be tested without a GPU."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from manyhop.loading.pipeline import OnStream, Stats, Streams, streams
from manyhop.loading.pipeline.stats import advise
from manyhop.loading.pipeline.streams import tensors_in


@dataclass
class Own:
    a: Any
    inner: Any = None


def found(value: Any, known: Any = ()) -> set[int]:
    return {id(t) for t in tensors_in(value, known)}


def test_tensors_are_found_wherever_they_are() -> None:
    a, b, c, d, e = torch.zeros(5).unbind()
    assert found([a, {"x": (b, {"y": c})}, Own(d, Own([e])), "text", 7, None, torch, torch.Tensor]) == set(
        map(id, (a, b, c, d, e))
    )


def test_tensors_of_pygs_batches_are_found() -> None:
    data = Data(x=torch.zeros(3), edge_index=torch.zeros(2, 0), names=["a", "b"], nested={"k": [torch.ones(2)]})
    assert found(data) == {id(data.x), id(data.edge_index), id(data.nested["k"][0])}
    data._orig_edge_index = torch.zeros(2, 1)
    hetero = HeteroData()
    hetero["a"].x = torch.zeros(3)
    hetero["a", "to", "a"].edge_index = torch.zeros(2, 4)
    hetero.graph_level = data
    expected = found(data) | {id(hetero["a"].x), id(hetero["a", "to", "a"].edge_index)}
    assert id(data._orig_edge_index) in expected
    assert found(hetero) == expected


def test_objects_that_contain_themselves_and_known_ones_end_the_search() -> None:
    loop: list[Any] = [torch.zeros(1)]
    loop.append(loop)
    assert len(found(loop)) == 1
    known = [torch.zeros(1), torch.zeros(1)]
    assert found([known, loop[0]], {id(known)}) == {id(loop[0])}


def test_the_wait_of_the_users_stream_is_taken_off_the_step() -> None:
    stats = Stats(on_gpu=True)
    stats.waited(0, 0.0, 1.0)
    stats.stepped(0, 1.0, 3.0)
    stats.stalled(0.5)
    stats.stalled(-3.0)
    report = stats.report()
    assert (report.waited_s, report.step_s) == (1.5, 1.5)
    stats.stalled(9.0)
    assert (stats.report().waited_s, stats.report().step_s) == (3.0, 0.0)


def test_advice_for_a_gpu_is_not_about_cores() -> None:
    given: dict[str, Any] = dict(batches=9, waited=5.0, step=5.0, num_workers=0, cores=8, on_gpu=True)
    advice = advise(making={"sampling": 1.0, "gathering": 3.0, "assembling": 0.0}, **given)
    assert "gathering" in advice
    assert "dtype" in advice
    assert "num_workers" not in advice


class Wire:
    """Streams, events and memory that write down what is done with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.events = 0
        wire = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                wire.events += 1
                self.name = f"event {wire.events}"

            def record(self, stream: Any) -> None:
                wire.log.append(f"{stream} marks {self.name}")

            def synchronize(self) -> None:
                wire.log.append(f"wait for {self.name}")

        class Stream(str):
            def wait_event(self, event: Any) -> None:
                wire.log.append(f"{self} waits for {event}")

        class Memory:
            is_cuda, layout = True, torch.strided

            def __init__(self, name: str) -> None:
                self.name = name

            def record_stream(self, stream: Any) -> None:
                wire.log.append(f"{self.name} on {stream}")

        monkeypatch.setattr(streams, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("first"))
        self.streams = Streams(torch.device("cuda", 0), Stats(), backlog=4)
        self.memory, self.stream = Memory, Stream

    def receive(self, on: str, ready: str, together: list[Any] | None, every: list[str]) -> list[str]:
        """What is done when a batch is handed out to this stream."""
        self.log.clear()
        on = next((s for s in self.streams._known.values() if s == on), None) or self.stream(on)
        self.streams._known[hash(on)] = on
        self.streams._current = lambda: on  # type: ignore[method-assign]
        made = OnStream("batch", ready, together=together)  # type: ignore[arg-type]
        assert self.streams.receive(made, lambda value: map(self.memory, every) if value == "batch" else ()) == "batch"
        return [line for line in self.log if "marks" not in line]


def test_memory_is_recorded_once_on_a_stream_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch)
    row = [wire.memory(name) for name in ("x1", "x2", "ids")]
    assert wire.receive("a", "row 1", row, ["x1", "ids"]) == ["a waits for row 1", "x1 on a", "x2 on a", "ids on a"]
    assert row == []  # which keeps nothing alive
    assert wire.receive("a", "row 1", row, ["x2", "ids"]) == []
    other = wire.receive("b", "row 1", row, ["x3", "ids"])  # on which nothing has been recorded
    assert other == ["b waits for row 1", "x3 on b", "ids on b"]
    assert wire.receive("b", "row 1", row, ["x4", "ids"]) == ["x4 on b", "ids on b"]
    assert wire.receive("a", "row 1", row, ["x5", "ids"]) == ["a waits for row 1"]
    assert wire.receive("a", "row 2", None, ["x6", "ids"]) == ["a waits for row 2", "x6 on a", "ids on a"]
    assert wire.receive("a", "row 2", None, ["x7"]) == ["x7 on a"]
