"""Rows that other ranks hold: one exchange per batch."""
