"""The loss terms: of the views alone, or in a file named after the settings key. Dimensions: see ``cse.model``."""
