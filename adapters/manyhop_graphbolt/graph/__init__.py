"""``FusedCSCSamplingGraph`` and its samples."""
