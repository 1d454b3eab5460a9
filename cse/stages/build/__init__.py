"""Builders: what encoder, loss and loop need beside their settings."""
