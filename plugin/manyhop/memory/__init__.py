"""Memory that the ranks of a node share, page-locked memory, and places of data."""
