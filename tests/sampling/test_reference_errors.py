"""What the numpy reference refuses."""

import pytest
import torch
from reference_worlds import TYPES, ask, fanouts, make_world
from torch._subclasses.fake_tensor import FakeTensorMode

from manyhop.errors import GraphError, InputError
from manyhop.sampling import BatchKey, CPUSampler, NeighborSpec, NodeRequest, ReferenceSampler
from manyhop.sampling.reference import picks as picks


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"fanouts": {TYPES[0]: (1,)}}, InputError, "missing"),
            ({"fanouts": fanouts(-2)}, InputError, "got -2"),
            ({"fanouts": {**fanouts(1), TYPES[0]: (1, 2)}}, InputError, "hops must be the same"),
            ({"fanouts": {**fanouts(1), ("a", "x", "b"): (1,)}}, InputError, "Unknown edge type"),
            ({"temporal": "first", "disjoint": True}, InputError, "'first'"),
            ({"expand": "old"}, InputError, "'old'"),
            ({"subgraph": "reduced"}, InputError, "'reduced'"),
            ({"temporal": "last"}, InputError, "disjoint=True"),
            ({"temporal": "last", "disjoint": True, "weighted": True}, InputError, "ignores weights"),
            ({"temporal": "last", "disjoint": True}, GraphError, "needs times"),
            ({"weighted": True}, GraphError, "needs weights"),
            ({"subgraph": "bidirectional"}, InputError, "Pass reverse"),
            ({"reverse": {}}, InputError, "Pass reverse"),
            ({"subgraph": "bidirectional", "reverse": {TYPES[1]: TYPES[1]}}, InputError, "to lead from 'b' to 'a'"),
        ],
    )
    def test_spec(self, change, error, message):
        with pytest.raises(error, match=message):
            ReferenceSampler(make_world(0).graph, NeighborSpec(**{"fanouts": fanouts(1), **change}))

    @pytest.mark.parametrize(
        ("seeds", "times", "message"),
        [
            ({"z": [1]}, {}, "Unknown node type"),
            ({"a": [14]}, {}, "got 14"),
            ({"a": [-1]}, {}, "got -1"),
            ({"a": [1]}, {"time_max": {"a": [1]}}, "not temporal"),
        ],
    )
    def test_request(self, seeds, times, message):
        with pytest.raises(InputError, match=message):
            ask(make_world(0), NeighborSpec(fanouts=fanouts(1)), seeds, **times)

    @pytest.mark.parametrize(
        ("times", "message"),
        [
            ({}, "pass time_max"),
            ({"time_max": {"a": [1, 2]}}, "time_max as an int64 tensor of shape \\[1\\]"),
            ({"time_max": {"a": [1]}, "time_min": {}}, "time_min as an int64 tensor of shape \\[1\\]"),
        ],
    )
    def test_temporal_request(self, times, message):
        spec = NeighborSpec(fanouts=fanouts(1), temporal="last", disjoint=True)
        with pytest.raises(InputError, match=message):
            ask(make_world(0, times=True), spec, {"a": [1]}, **times)

    def test_dtype_of_seeds(self):
        sampler = ReferenceSampler(make_world(0).graph, NeighborSpec(fanouts=fanouts(1)))
        with pytest.raises(InputError, match="seed nodes as a 1-dimensional int64 tensor"):
            sampler.sample(NodeRequest(key=BatchKey(0, 0, 0), seeds={"a": torch.tensor([1], dtype=torch.int32)}))

    def test_dtype_of_times(self):
        spec = NeighborSpec(fanouts=fanouts(1), temporal="last", disjoint=True)
        one = {"a": torch.tensor([1])}
        request = NodeRequest(key=BatchKey(0, 0, 0), seeds=one, time_max={"a": one["a"].int()})
        with pytest.raises(InputError, match="time_max as an int64 tensor"):
            CPUSampler(make_world(0, times=True).graph, spec).sample(request)


def of_no_memory(kind, count=1):
    if kind == "meta":
        return torch.zeros(count, dtype=torch.int64, device="meta")
    if kind == "sparse":
        return torch.zeros(count, dtype=torch.int64).to_sparse()
    with FakeTensorMode():
        return torch.zeros(count, dtype=torch.int64)


@pytest.mark.parametrize("kind", ["fake", "meta", "sparse"])
@pytest.mark.parametrize("backend", [ReferenceSampler, CPUSampler])
class TestTensorsWithoutMemory:
    @pytest.mark.parametrize("which", ["seeds", "time_max", "time_min", "exclude"])
    def test_nodes(self, backend, kind, which):
        times = which.startswith("time")
        graph = make_world(0, times=times).graph
        spec = NeighborSpec(fanouts=fanouts(1), temporal="last" if times else None, disjoint=times)
        one = {"a": torch.tensor([1])}
        given = {"seeds": one} | ({"time_max": one, "time_min": one} if times else {})
        given[which] = {TYPES[0] if which == "exclude" else "a": of_no_memory(kind)}
        with pytest.raises(InputError, match=r"in memory.*, got a tensor"):
            backend(graph, spec).sample(NodeRequest(key=BatchKey(1, 0, 0), **given))
