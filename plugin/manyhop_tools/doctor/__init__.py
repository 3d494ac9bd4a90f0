"""What ``manyhop doctor`` finds out."""
