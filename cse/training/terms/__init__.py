"""The terms of the loss, each in the file of its settings key. Dimension letters: see ``cse.model``."""
