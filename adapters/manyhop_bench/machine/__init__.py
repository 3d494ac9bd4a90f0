"""``manyhop bench machine``: the constants of the cost model."""
