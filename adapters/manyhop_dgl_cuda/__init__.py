"""DGL's graphs and message passing on torch tensors: for GPUs, if the installed DGL is a build for CPUs."""
