"""Samples that a GPU pads: bit for bit what the CPU makes of them."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from test_pad import EDGES, MODES, build, sampled

from manyhop.errors import InputError
from manyhop.loading.pipeline import Counts, PaddedRows, Padder, clear_rows, pad_sizes
from manyhop.sampling import SampledSubgraph

pytest.importorskip("triton")
from manyhop.loading.pipeline.gpu import GPUFrame, clear, fill

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
CPU = torch.device("cpu")
SIZES = {"a": 600, "b": 400, "none": 0}


@pytest.fixture(scope="module")
def graph() -> Any:
    return build(SIZES, 10)


def samples(graph: Any, fanout: tuple[int, ...] = (3, 2, 2), **options: Any) -> list[SampledSubgraph]:
    """Batches, the last of which is smaller."""
    return list(sampled(graph, 600, (64, 64, 64, 5), fanout, **options))


def moved(value: Any) -> Any:
    """The same on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    return {key: moved(part) for key, part in value.items()} if isinstance(value, dict) else value


def on_device(sample: SampledSubgraph) -> SampledSubgraph:
    return SampledSubgraph(**{one.name: moved(getattr(sample, one.name)) for one in fields(sample)})


def tensors_of(sample: SampledSubgraph) -> dict[Any, Any]:
    named = {
        "node": sample.node,
        "row": sample.row,
        "col": sample.col,
        "edge_id": sample.edge_id,
        "tree": sample.tree or {},
    }
    return {(name, t): value for name, values in named.items() for t, value in values.items()}


def compare(padder: Padder, batches: list[SampledSubgraph]) -> None:
    expected = padder(batches)
    frames = [GPUFrame(padded.sizes) for padded in expected]
    got = fill(frames, [on_device(s) for s in batches], [Counts.of(s) for s in batches], DEVICE, padder._num_trees)
    for want, (sample, node_mask, edge_mask, _) in zip(expected, got, strict=True):
        found = tensors_of(sample)
        assert found.keys() == tensors_of(want.sample).keys()
        for key, value in tensors_of(want.sample).items():
            assert (found[key] is None) == (value is None)
            assert value is None or torch.equal(found[key].cpu(), value), key
        for e, row in sample.row.items():
            assert sample.edge_index(e).data_ptr() == row.data_ptr()
        assert (sample.num_sampled_nodes, sample.num_sampled_edges) == (
            want.sample.num_sampled_nodes,
            want.sample.num_sampled_edges,
        )
        for mine, theirs in ((node_mask, want.node_mask), (edge_mask, want.edge_mask)):
            assert mine.keys() == theirs.keys()
            assert all(mine[t].dtype == torch.bool and torch.equal(mine[t].cpu(), mask) for t, mask in theirs.items())


@pytest.mark.parametrize("options", MODES)
def test_samples_are_padded_as_on_the_cpu(graph: Any, options: dict[str, Any]) -> None:
    batches = samples(graph, **options)
    sizes = pad_sizes(
        [Counts.of(s) for s in batches[:2]], seeds={"a": 64} if options != MODES[3] else None, empty=["none"]
    )
    compare(Padder(sizes, num_trees=64), batches)


def test_samples_of_several_sizes_at_once(graph: Any) -> None:
    batches = samples(graph, (2, 0)) + samples(graph, (9, 9), replace=True)
    sizes = pad_sizes([Counts.of(s) for s in batches[:2]])
    padder = Padder(sizes, num_trees=64)
    assert len({padded.grown for padded in padder(batches)}) > 1
    compare(padder, batches)


@pytest.mark.slow
def test_large_samples_take_programs_several_turns(graph: Any) -> None:
    batches = samples(graph)[:1]
    sizes = pad_sizes([Counts.of(batches[0])])
    sizes = replace(sizes, edges={e: tuple(n and 70_000 for n in own) for e, own in sizes.edges.items()})
    compare(Padder(sizes, num_trees=64), batches)


def test_samples_without_edges(graph: Any) -> None:
    sample = samples(graph)[0]
    none = torch.empty(0, dtype=torch.int64)
    empty = replace(
        sample,
        node={t: node[: 5 * (t == "a")] for t, node in sample.node.items()},
        row=dict.fromkeys(EDGES, none),
        col=dict.fromkeys(EDGES, none),
        edge_id=dict.fromkeys(EDGES, none),
        num_sampled_nodes={t: [5 * (t == "a"), 0, 0, 0] for t in SIZES},
        num_sampled_edges={e: [0, 0, 0] for e in EDGES},
    )
    compare(Padder(pad_sizes([Counts.of(sample)]), num_trees=64), [empty, sample, empty])


def test_samples_as_a_user_may_have_changed_them(graph: Any) -> None:
    sample, counted = samples(graph)[0], Counts.of(samples(graph)[0])
    e = ("a", "x", "a")
    other = replace(
        sample,
        node={t: torch.stack([n, n], 1)[:, 0] for t, n in sample.node.items()},
        row=sample.row | {e: sample.row[e].int()},
        edge_id=sample.edge_id | {e: None},
    )
    compare(Padder(pad_sizes([counted]), num_trees=64), [other, sample])
    frame = GPUFrame(pad_sizes([counted]))
    with pytest.raises(InputError, match="the sum of the sample's counts per hop"):
        fill([frame], [on_device(replace(sample, row=sample.row | {e: sample.row[e][1:]}))], [counted], DEVICE, 64)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 3, 8, 100])
def test_rows_of_padding_are_cleared(graph: Any, dtype: torch.dtype, columns: int) -> None:
    batches = samples(graph)[-2:]
    sizes = pad_sizes([Counts.of(s) for s in batches])
    filled = fill([GPUFrame(sizes)] * 2, [on_device(s) for s in batches], [Counts.of(s) for s in batches], DEVICE, 64)
    asked, masks = [], []
    for _, node_mask, edge_mask, jobs in filled:
        for kind, mask in (node_mask | edge_mask).items():
            asked.append((torch.ones(len(mask), columns, dtype=dtype, device=DEVICE), jobs.addresses[kind], -1))
            masks.append(mask)
            sizes_of = sizes.nodes[kind] if isinstance(kind, str) else sizes.edges[kind]
            for block, part in enumerate(mask.split(sizes_of)):
                if len(part):
                    rows = torch.ones(len(part), columns, dtype=dtype, device=DEVICE)
                    asked.append((rows, jobs.addresses[kind], block))
                    masks.append(part)
    assert len(asked) > 2 * 16  # several launches
    clear(asked, filled[0][3].num_blocks)
    for (value, _, _), mask in zip(asked, masks, strict=True):
        assert torch.equal(value, mask[:, None].expand_as(value).to(dtype))


def test_rows_that_kernels_do_not_clear(graph: Any) -> None:
    sample = samples(graph)[0]
    (padded,) = Padder(pad_sizes([Counts.of(sample)]), num_trees=64)([sample])
    frame = GPUFrame(padded.sizes)
    ((_, _, _, jobs),) = fill([frame], [on_device(sample)], [padded.counts], DEVICE, 64)
    on_gpu = replace(padded, jobs=jobs)
    n = padded.node_mask["a"].numel()
    rows = torch.ones(n, 2, device=DEVICE)
    values = [(torch.ones(n), 0, padded), (torch.ones(2, n), 1, padded), (rows, 0, on_gpu)]
    values += [(torch.ones(2, n, device=DEVICE), 1, on_gpu), (torch.ones(2, n, device=DEVICE).T, 0, on_gpu)]
    longer = torch.ones(n + 3, device=DEVICE)  # whose last rows are of no node
    clear_rows([PaddedRows(longer, on_gpu, "a")])
    assert torch.equal(longer[:n].bool().cpu(), padded.node_mask["a"])
    assert longer[n:].all()
    weight = torch.ones(n, device=DEVICE, requires_grad=True)
    values += [(weight * 2, 0, on_gpu)]
    clear_rows([PaddedRows(value, of, "a", dim) for value, dim, of in values])
    for value, dim, _ in values:
        along = value.detach().movedim(dim, 0).reshape(n, -1).cpu()
        assert torch.equal(along.any(1), padded.node_mask["a"])
        assert torch.equal(along.all(1), padded.node_mask["a"])
    values[-1][0].sum().backward()
    assert torch.equal(weight.grad.cpu() == 2, padded.node_mask["a"])  # what was cleared has no gradient
    clear_rows([])
