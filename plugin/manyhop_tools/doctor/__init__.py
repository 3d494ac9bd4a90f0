"""``manyhop doctor``."""
