"""``benchmarks dgl``: samplers and DataLoaders beside those of DGL."""

import manyhop_dgl  # noqa: F401  # lets DGL be imported on this torch
