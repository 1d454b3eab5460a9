"""Builders from settings to parts; no code below them sees a settings object."""
