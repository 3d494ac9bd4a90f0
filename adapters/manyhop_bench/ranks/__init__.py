"""``manyhop bench ranks`` and ``manyhop bench exchange``: several ranks on one machine."""
