"""Whether the backbone reads the language of the text."""

from __future__ import annotations

from cse.model.backbone_files import find_backbone
from cse.model.declared import languages_of
from cse.settings.groups.backbone import BackboneSettings


def other_language(backbone: BackboneSettings, language: str | None) -> str:
    """Return a note if the text is in a language that the backbone's card does not name; else nothing.

    Args:
        backbone: the settings.
        language: ISO 639-1 code of the text; None: not known.

    Raises:
        CseError: what ``find_backbone`` raises.
    """
    known = languages_of(find_backbone(backbone.name, backbone.revision).folder)
    if language is None or not known or any(code.split("-")[0] == language for code in known):
        return ""
    return (
        f"the text is in another language ({language}) than {backbone.name} was trained on ({', '.join(known)}); "
        "prompts cannot teach it one: choose a backbone that reads it (-s backbone.name=...)"
    )
