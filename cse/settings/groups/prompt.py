"""Group ``prompt``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.choices import Side
from cse.settings.groups.group import NonNegative, SettingsGroup, Share


class PromptSettings(SettingsGroup):
    """The trainable prompt vectors (PromCSE section 3.1)."""

    kind: Literal["none", "key_value", "hidden_state", "input"] = Field(
        "key_value",
        description="`key_value`: free keys and values in every layer (released code); `hidden_state`: vectors that "
        "pass through each layer's frozen key and value projections (PromCSE equation 1); `input`: vectors before the "
        "tokens of the first layer only, which pass through all layers; `none`: no prompt.",
    )
    length: int = Field(12, ge=0, le=1000, description="Prompt vectors per layer (k); 0 only with `kind: none`.")
    layers: Literal["separate", "shared"] = Field(
        "separate", description="Separate prompts for each layer, or one shared by all layers (PromCSE table 3)."
    )
    dropout: Share | None = Field(
        None, description="Prompt dropout rate, drawn per row; null: the backbone's hidden dropout."
    )
    position_shift: bool | None = Field(
        None,
        description="Number token positions from k, as the released checkpoints do; null: only where positions are "
        "learned, not where they are rotary.",
    )
    init: Literal["random", "text", "checkpoint", "mlp", "lstm"] = Field(
        "random",
        description="Initialise the prompt from normal noise, the backbone's states for a text, or a checkpoint; or "
        "train it through an MLP or LSTM that is discarded afterwards (P-tuning).",
    )
    init_std: NonNegative = Field(0.02, description="`init: random`: standard deviation of the noise.")
    init_checkpoint: str = Field(
        "data/raw/prompt",
        description="`init: checkpoint`: folder of a checkpoint with the same kind of prompt on the same backbone, for "
        "instance from MLM training; the pipeline retrains when it changes.",
    )
    side: Side = Field(
        "both",
        description="Whose vectors the prompts make: `both`, queries' and documents', or `query`: those of role "
        "`query`; all others keep the bare backbone's, so that an index stays as it is.",
    )
    cls: bool = Field(False, description="Also train the word embedding of `[CLS]` (D2CSE's `[CLS]` prompt).")
