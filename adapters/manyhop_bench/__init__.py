"""``manyhop bench``: how fast manyhop is on this machine, side by side with what else is installed."""
