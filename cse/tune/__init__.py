"""Sweeps with Ray Tune: what is tried, one trial, the driver, and what is left to look at."""
