"""Group ``objective``: the terms of the loss, found in ``cse/settings/terms``."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from pydantic import create_model, model_validator

from cse.settings import terms as package
from cse.settings.groups.group import SettingsGroup
from cse.settings.terms import TermSettings

# in params.yaml and in the sum; a term that this does not name comes after these, by name
_ORDER = (
    *("nt_xent", "matryoshka", "energy_hinge", "masked_lm", "replaced_tokens", "contrastive_tension", "self_guided"),
    *("mutual_information", "nli_softmax", "distillation", "label_proxies", "supervised_contrastive", "collection"),
)


def _found() -> dict[str, type[TermSettings]]:
    """Return the settings class of every term, by key and in order."""
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    names = [*_ORDER, *sorted(found.difference(_ORDER))]
    modules = {name: import_module(f"{package.__name__}.{name}") for name in names}
    return {name: getattr(module, name.title().replace("_", "") + "Settings") for name, module in modules.items()}


_FIELDS: dict[str, Any] = {name: (kind, kind()) for name, kind in _found().items()}
_Terms: Any = create_model("_Terms", __base__=SettingsGroup, **_FIELDS)


class ObjectiveSettings(_Terms):
    """The terms of the loss."""

    if TYPE_CHECKING:  # the terms are found when the project runs

        def __getattr__(self, name: str) -> Any: ...

    def terms(self) -> dict[str, TermSettings]:
        """Return the terms with a positive weight, by name and in order."""
        terms = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: term for name, term in terms.items() if term.weight > 0}

    def with_weights(self, weights: Mapping[str, float]) -> Self:
        """Return the objective with other weights of some terms, by name; unlike in a file, all may be 0."""
        there = {name: weight for name, weight in weights.items() if name in type(self).model_fields}
        changed = {name: getattr(self, name).model_copy(update={"weight": there[name]}) for name in there}
        return self.model_copy(update=changed)

    def of_further(self, weights: Mapping[str, float] | None) -> Self:
        """Return the objective of a source besides the main one: its own weights, no term that reads labels."""
        without = {name: 0.0 for name, term in self.terms().items() if term.labels}
        return self.with_weights({**(weights or {}), **without})

    def over(self, sources: Iterable[Mapping[str, float]]) -> Self:
        """Return the objective with every term that is trained, given what each further source replaces."""
        weights: dict[str, float] = {}
        for terms in sources:
            weights = {name: weight for name, weight in terms.items() if weight > 0} | weights
        return self.with_weights(weights | {name: term.weight for name, term in self.terms().items()})

    @property
    def first(self) -> str:
        """Name of the first term."""
        return next(iter(self.terms()))

    @property
    def needing_head(self) -> list[str]:
        """Names of the terms that need the backbone's MLM head."""
        return [name for name, term in self.terms().items() if term.head]

    @property
    def needs_labels(self) -> bool:
        """Whether a term needs the label of each row's texts."""
        return any(term.labels for term in self.terms().values())

    @property
    def comparing(self) -> list[str]:
        """Names of the terms that compare sentences; dev pairs cannot judge the others, which work on tokens."""
        return [name for name, term in self.terms().items() if term.compares]

    @property
    def copies(self) -> int | None:
        """Copies of each sentence the loss reads: 1 if no term compares copies, None for all."""
        return None if any(term.copies for term in self.terms().values()) else 1

    @property
    def least_rows(self) -> int:
        """Minimum rows for a loss that is not constant."""
        return min(self.terms()[name].least_rows for name in self.comparing) if self.comparing else 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.terms():
            raise ValueError("nt_xent.weight: every term of the objective has weight 0; give one a weight above 0")
        return self
