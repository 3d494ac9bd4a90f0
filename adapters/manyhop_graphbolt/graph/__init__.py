"""``FusedCSCSamplingGraph`` and what is sampled of it."""
