"""Benchmarks: ratios against other tools and lower bounds, measured in one run; not part of the tests."""
