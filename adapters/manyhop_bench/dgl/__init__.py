"""``manyhop bench dgl``: samplers and DataLoaders beside those of DGL."""
