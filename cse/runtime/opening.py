"""Open what a user names, if it needs no torch: a bundle, or a domain of a bank (``BANK:NAME``)."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError
from cse.runtime.bank import domain_of, is_bank, refuse_whole_bank
from cse.runtime.bundle import is_bundle
from cse.runtime.domain import AUTO
from cse.runtime.onnx_encoder import OnnxEncoder


def open_onnx(model: str, *, device: str = "auto", banks: dict[Path, OnnxEncoder] | None = None) -> OnnxEncoder | None:
    """Open a bundle folder or a bank's domain; return None for anything else.

    Args:
        banks: banks that are open already, by folder, all on this device; a bank that is opened now is added.
    """
    found = domain_of(model)
    if found is not None:
        bank, name = found
        opened = {} if banks is None else banks
        if bank not in opened:
            opened[bank] = OnnxEncoder(bank, provider=device)
        onnx = opened[bank]
        # a domain that is replaced while it is in use changes nothing here
        return onnx.of(name if name == AUTO else onnx.bank.domain(name))
    refuse_whole_bank(Path(model))
    return OnnxEncoder(model, provider=device) if is_bundle(model) else None


def open_bank(folder: str, *, device: str = "auto") -> OnnxEncoder:
    """Open a bank to encode sentences of several domains together."""
    if not is_bank(folder):
        raise CseError(f"{folder}: no bank here, so rows cannot choose a domain; `cse bank create` makes one")
    return OnnxEncoder(folder, provider=device)
