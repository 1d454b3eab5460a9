"""Search by words and vectors: one word search, one way to put both together."""
