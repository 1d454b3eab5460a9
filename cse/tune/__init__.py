"""Hyperparameter sweeps with Ray Tune: search, trials, driver and results."""
