"""Distributed work with Ray: training on several workers and encoding a corpus."""
