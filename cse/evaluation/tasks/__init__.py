"""Measures of a user's own tasks; see ``score.score_task``."""
