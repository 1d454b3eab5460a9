"""Vectors of texts that were asked for of late."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from cse.runtime.domain import Domain
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.tokens import Tokens

_OVERHEAD = 400  # bytes of a vector's key and places, beside its numbers


class Cache:
    """Vectors by what they are made of: tokens, domain and the model's files. The longest unused give way.

    For the event loop's thread alone.

    Args:
        most: bytes; 0: nothing is kept.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._makers: WeakKeyDictionary[Domain, bytes] = WeakKeyDictionary()

    def keys(self, encoder: OnnxEncoder, tokens: Tokens, domains: Sequence[Domain]) -> list[bytes]:
        """Return the key of each text; none if nothing is kept."""
        if not self._most:
            return []
        rows = enumerate(domains)
        return [
            blake2b(tokens.row(row).tobytes(), digest_size=16, key=self._maker(encoder, one)).digest()
            for row, one in rows
        ]

    def find(self, keys: Sequence[bytes]) -> dict[int, NDArray[np.float32]]:
        """Return the vectors that are known, by the places of their keys."""
        found = {place: self._kept[key] for place, key in enumerate(keys) if key in self._kept}
        for place in found:
            self._kept.move_to_end(keys[place])
        return found

    def keep(self, key: bytes, vector: NDArray[np.float32]) -> None:
        """Keep a vector."""
        if key not in self._kept:
            self._bytes += vector.nbytes + _OVERHEAD
        self._kept[key] = vector.copy()  # not the whole array that it is a row of
        while self._bytes > self._most:
            _, old = self._kept.popitem(last=False)
            self._bytes -= old.nbytes + _OVERHEAD

    def _maker(self, encoder: OnnxEncoder, domain: Domain) -> bytes:
        if domain not in self._makers:
            made_of = f"{sorted(encoder.manifest.files.items())} {domain.identity()}"
            self._makers[domain] = blake2b(made_of.encode(), digest_size=32).digest()
        return self._makers[domain]
