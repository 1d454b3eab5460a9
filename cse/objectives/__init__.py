"""Objectives: tensors in, named tensors out. Dimension letters: see ``cse.model``."""
