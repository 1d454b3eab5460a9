"""Losses: one file each, with paper, equation and module. Dimension letters: see ``cse.model``."""
