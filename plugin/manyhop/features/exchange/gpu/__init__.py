"""The exchange between GPUs, over NCCL. Importing a module of this package imports triton."""
