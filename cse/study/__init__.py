"""A study: many settings, each trained with several seeds, chosen by dev scores before a test set is opened."""
