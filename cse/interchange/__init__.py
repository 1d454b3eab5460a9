"""Models in the forms that other tools load."""
