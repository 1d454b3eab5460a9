"""The terms of the loss: each file holds the settings of one, and what it needs of the rows.

A file is named after its key in ``objective`` and its class after the file, so that ``ObjectiveSettings`` finds both.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from cse.settings.groups.group import NonNegative, SettingsGroup


class TermSettings(SettingsGroup):
    """A loss term. Its class variables declare what the term needs; all checks read them.

    Attributes:
        views: kinds of rows (``data.view``) the term can train on.
        rows: the rows it needs, in words for error messages.
        copies: whether it compares copies of a sentence; other terms read only the first copy.
        compares: whether it compares sentences; only then can dev pairs judge it.
        labels: whether it needs the label of each row's texts (``data.view: categories``); it reads the main source.
    """

    views: ClassVar[tuple[str, ...]] = ("sentences", "pairs", "triplets")
    rows: ClassVar[str] = "unlabelled rows"
    copies: ClassVar[bool] = True
    compares: ClassVar[bool] = True
    head: ClassVar[bool] = False
    labels: ClassVar[bool] = False

    weight: NonNegative = Field(0.0, description="Weight of this term in the loss; 0 disables it.")

    @property
    def least_rows(self) -> int:
        """Minimum rows for a loss that is not constant: contrasting needs at least two."""
        return 2 if self.compares else 1


class LabelTermSettings(TermSettings):
    """A loss term that reads the label of each row's texts."""

    views = ("pairs", "triplets")
    rows = "labelled texts (data.view: categories)"
    labels = True
