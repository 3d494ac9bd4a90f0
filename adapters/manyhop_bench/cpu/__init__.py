"""``manyhop bench cpu``: sampling alone and whole loaders on the CPU."""
