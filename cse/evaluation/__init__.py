"""Scores: declared similarity tasks, rank correlations, tables."""
