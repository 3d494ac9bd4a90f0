"""What of the hand-over from stream to stream can be tested without a GPU."""

from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from manyhop.pipeline import Stats
from manyhop.pipeline._stats import advise
from manyhop.pipeline._streams import tensors_in


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


def test_a_stage_may_be_of_another_thread() -> None:
    stats = Stats()
    stats.record(3, "gather", 0.0, 1.0, "GPU of manyhop-0")
    (interval,) = stats.intervals()
    assert interval.thread == "GPU of manyhop-0"
