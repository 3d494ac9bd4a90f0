"""Add the reverse of every sampled edge, for several batches at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from manyhop.graph import EdgeType
from manyhop.sampling.contract import SampledSubgraph
from manyhop.sampling.gpu.transfer import Readback, upload


def add_reverses(samples: Sequence[SampledSubgraph], reverse: Mapping[EdgeType, EdgeType]) -> list[SampledSubgraph]:
    """Apply ``to_bidirectional`` to each sample; waits once, for the numbers of edges.

    Args:
        samples: samples on one device.
        reverse: edge type -> the edge type of its reverses.
    """
    parts = [(b, t, r) for b in range(len(samples)) for t, r in reverse.items()]
    results = [(dict(s.row), dict(s.col), dict(s.edge_id)) for s in samples]
    sizes = [samples[b].row[t].numel() + samples[b].row[r].numel() for b, t, r in parts]
    if sum(sizes):
        device = samples[0].row[parts[0][1]].device
        row = torch.cat([x for b, t, r in parts for x in (samples[b].row[t], samples[b].col[r])])
        col = torch.cat([x for b, t, r in parts for x in (samples[b].col[t], samples[b].row[r])])
        # A key encodes part, column and row: sorting keeps the order of the parts.
        num_src = np.array([max(samples[b].node[t[0]].numel(), 1) for b, t, _ in parts], np.int64)
        num_pairs = num_src * np.array([samples[b].node[t[2]].numel() for b, t, _ in parts], np.int64)
        lengths = np.array(sizes, np.int64)
        length, width, base, last = upload(
            [lengths, num_src, np.cumsum(num_pairs) - num_pairs, np.maximum(np.cumsum(lengths) - 1, 0)], device
        )
        part = torch.repeat_interleave(torch.arange(len(parts), device=device), length, output_size=sum(sizes))
        key, order = torch.sort(base[part] + col * width[part] + row, stable=True)
        first = torch.ones_like(key, dtype=torch.bool)
        torch.ne(key[1:], key[:-1], out=first[1:])
        number = torch.cumsum(first, 0)
        late = Readback(number[last])
        kept = torch.empty(sum(sizes) + 1, dtype=torch.int64, device=device)
        kept[torch.where(first, number - 1, sum(sizes))] = order  # duplicates all go to the extra last element
        ends = late.wait().tolist()
        kept = kept[: ends[-1]]
        row, col = row[kept], col[kept]
        starts = np.cumsum(lengths) - lengths
        begin = 0
        for i, (b, t, r) in enumerate(parts):
            end = ends[i] if sizes[i] else begin
            pair = torch.stack([row[begin:end], col[begin:end]])
            results[b][0][t], results[b][1][t] = pair.unbind(0)
            ids = samples[b].edge_id[t]
            if r == t and ids is not None:
                results[b][2][t] = ids[(kept[begin:end] - int(starts[i])) % max(ids.numel(), 1)]
            else:
                results[b][2][t] = None
            begin = end
    else:
        for b, t, r in parts:
            results[b][2][t] = samples[b].edge_id[t] if r == t else None
    return [
        replace(s, row=row, col=col, edge_id=edge_id, num_sampled_nodes=None, num_sampled_edges=None)
        for s, (row, col, edge_id) in zip(samples, results, strict=True)
    ]
