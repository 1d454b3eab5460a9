"""Ratios against peers and against the floor, measured in one run; never part of the tests."""
