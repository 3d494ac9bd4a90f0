"""``OnDiskDataset`` and others."""
