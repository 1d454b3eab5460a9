"""Terms of the loss that run a pass, a head or a copy of their own. Dimension letters: see ``cse.model``."""
