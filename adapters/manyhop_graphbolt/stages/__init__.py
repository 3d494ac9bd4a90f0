"""Stages of a chain: seeds, sampling, negatives, exclusion, features, copying."""
