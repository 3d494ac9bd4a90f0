"""Ranks: processes that train together, their group, the facts they exchange, and the detection of failed ones."""
