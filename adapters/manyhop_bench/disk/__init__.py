"""``manyhop bench disk``: rows of a file that is larger than memory."""
