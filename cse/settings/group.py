"""Base class of all groups of settings."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
LARGEST = 2**32 - 1  # largest seed of NumPy's RandomState; no other integer setting needs more
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# below this, float32 rounding of the cosines (6e-8) dominates the loss, and soon the gradient norm is not finite
Temperature = Annotated[float, Field(ge=1e-6)]


class SettingsGroup(BaseModel):
    """A group of settings: frozen, strictly typed, no unknown keys; the text below each is its meaning."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_value(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, int) and part > LARGEST:
                raise PydanticCustomError("too_large", f"whole numbers go up to {LARGEST}")
            if isinstance(part, str) and not part.strip():
                raise PydanticCustomError("blank", "is blank; give a value or leave the key out")
            if isinstance(part, str) and _UNREADABLE.search(part):
                raise PydanticCustomError("control", "contains a control character; remove it")
        return value
