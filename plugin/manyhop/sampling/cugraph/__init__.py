"""The cuGraph backend: a graph whose edges are spread over the GPUs of all ranks, sampled together. No Dask."""
