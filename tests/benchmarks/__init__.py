"""Programs that measure the figures of tests/benchmarks/records: ``python tests/benchmarks --help`` lists them."""
