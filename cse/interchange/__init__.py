"""Models of other code bases: in as checkpoints, out to their formats, and to the hub and back."""
