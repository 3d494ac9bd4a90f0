"""The kernels, which run on the GPU or in triton's interpreter."""
