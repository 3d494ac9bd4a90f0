"""Functions that the kernels of all modes call: random numbers, hash table, scans, bisection."""
