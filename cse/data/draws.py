"""Draw texts by a hash of what they say: more rows in a file do not change what was drawn of the earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

LEAST = 2  # rows of a part


def place_of(salt: str, key: bytes) -> float:
    """Return the place of a key between 0 and 1, which depends on nothing but the salt and the key."""
    return int.from_bytes(blake2b(salt.encode("utf-8") + b"\0" + key, digest_size=8).digest(), "big") / 2**64


def draw_parts(sizes: Mapping[bytes, int], salt: str, share: float, parts: int, drawn: dict[bytes, int]) -> None:
    """Draw about a share of some rows for each of several parts; add the part of each drawn key to ``drawn``.

    A key is drawn where its own place says so, whatever else there is. Among few rows that can miss the share by far: a
    part with less than half of it, or fewer than two rows, also takes the next keys, and one with half as much again
    takes no more. Two rows stay undrawn; nothing is drawn of rows too few for that.

    Args:
        sizes: rows of each key.
        share: of the rows for each part, from 0 to 1.
        drawn: parts of the keys drawn earlier, of which none is drawn again.
    """
    rows = sum(sizes.values())
    most = (rows - LEAST) // parts
    if most < LEAST:
        return
    least = min(max(round(share * rows / 2), LEAST), most)
    most = min(most, max(least, round(1.5 * share * rows)))
    place = {key: place_of(salt, key) for key in sizes}
    home = {key: int(parts * place_of(f"{salt} part", key)) for key in sizes}
    for part in range(parts):
        taken = sum(size for key, size in sizes.items() if drawn.get(key) == part)
        order = {key: (home[key] != part, place[key]) for key in sizes if key not in drawn}
        for key in sorted(order, key=order.__getitem__):
            wanted = home[key] == part and place[key] < share * parts
            if taken >= most or (not wanted and taken >= least):
                break
            drawn[key] = part
            taken += sizes[key]
