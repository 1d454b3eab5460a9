"""Group ``prompt``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, NonNegative, Positive, Share


class PromptSettings(Group):
    """The trainable prompt vectors (PromCSE section 3.1)."""

    kind: Literal["none", "key_value", "hidden_state", "input"] = Field(
        "key_value",
        description="`key_value`: free keys and values in every layer (released code); `hidden_state`: vectors that "
        "pass through each layer's frozen key and value projections (PromCSE equation 1); `input`: vectors before the "
        "tokens of the first layer only, which pass through all layers; `none`: no prompt.",
    )
    length: int = Field(12, ge=0, le=1000, description="Prompt vectors per layer (k); 0 only with kind `none`.")
    layers: Literal["separate", "shared"] = Field(
        "separate", description="A prompt of its own for every layer, or one that all layers share (PromCSE table 3)."
    )
    dropout: Share | None = Field(
        None, description="Dropout on the prompt, drawn for each row; null: the backbone's hidden dropout."
    )
    position_shift: bool = Field(True, description="Tokens take positions from k on, as the released checkpoints do.")
    init: Literal["random", "text", "checkpoint"] = Field(
        "random", description="Start of the prompt: normal noise, what the backbone makes of a text, or another prompt."
    )
    init_std: NonNegative = Field(0.02, description="Standard deviation of the normal initialisation.")
    init_text: str = Field(
        "This sentence can be summarised in one word that carries its whole meaning:",
        description="`init: text`: the text; it is repeated or cut to the prompt's length.",
    )
    init_checkpoint: str = Field(
        "data/raw/prompt",
        description="`init: checkpoint`: folder of a checkpoint with the same prompt on the same backbone, for "
        "instance of MLM training; the pipeline trains again when it changes.",
    )
    reparametrize: Literal["none", "mlp", "lstm"] = Field(
        "none", description="Train the prompt through a network that is dropped afterwards (P-tuning), or directly."
    )
    reparametrize_width: Positive = Field(512, le=65_536, description="Hidden width of that network.")
    cls: bool = Field(False, description="Train the word vector of `[CLS]` too (D2CSE's `[CLS]` prompt).")
