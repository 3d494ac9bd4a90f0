"""``benchmarks embeddings``: updates of trainable rows beside torch's."""
