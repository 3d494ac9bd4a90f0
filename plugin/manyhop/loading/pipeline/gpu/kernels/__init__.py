"""The kernels: what runs on the GPU, or in triton's interpreter."""
