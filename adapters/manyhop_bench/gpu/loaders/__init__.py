"""Whole loaders and training, the parts ``loader`` and ``epoch`` of ``manyhop bench gpu``. Imports PyG."""
