"""Measures on embeddings, their tables and records."""
