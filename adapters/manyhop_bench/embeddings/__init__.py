"""``manyhop bench embeddings``: updates of trainable rows beside torch's."""
