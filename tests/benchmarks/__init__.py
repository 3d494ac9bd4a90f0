"""Programs that measure the figures of docs/benchmarks*: ``python tests/benchmarks --help`` lists them."""
