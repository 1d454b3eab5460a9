"""Texts unlike anyone's own: a model in int8 must expect them, for users send them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from random import Random
from string import ascii_uppercase, punctuation

_EACH = 10  # texts of each kind
# two lines of a language: the first calibrates, the second judges
_SENTENCES = files("cse.export").joinpath("mix.txt").read_text("utf-8").splitlines()


def mixed_texts(*, judged: bool) -> list[str]:
    """Return numbers, codes, other scripts, SHOUTING, single words, marks, very short and long texts.

    Args:
        judged: whether to return those that a model is judged on; the others, of the same kinds, calibrate it.
    """
    random, sentences = Random(int(judged)), _SENTENCES[judged::2]
    words = [word for sentence in sentences for word in sentence.split()]

    def number(digits: int) -> int:
        return random.randrange(10 ** random.randint(1, digits))

    def some(alphabet: str, most: int) -> str:
        return "".join(random.choices(alphabet, k=random.randint(1, most)))

    def code() -> str:
        return f"{some(ascii_uppercase, 4)}-{number(5)}{random.choice('/._-')}{some(ascii_uppercase, 2)}{number(3)}"

    kinds: list[Callable[[], str]] = [
        lambda: str(number(12)),
        lambda: f"{random.choice('€$£')} {random.uniform(0, 10 ** random.randint(1, 7)):,.2f}",
        lambda: f"{random.uniform(-50, 150):.{random.randint(0, 4)}f} {random.choice(['%', '°C', 'kg', 'ms', 'mm'])}",
        lambda: f"{random.randint(1, 28):02}{random.choice('./-')}{random.randint(1, 12):02}.{number(4)}",
        lambda: f"{random.randint(1990, 2040)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}T{number(2)}:00Z",
        lambda: f"+{number(2)} ({number(4)}) {number(8)}",
        lambda: " ".join(str(number(4)) for _ in range(random.randint(3, 60))),
        code,
        lambda: " ".join(code() for _ in range(random.randint(2, 20))),
        lambda: f"{random.getrandbits(random.choice([32, 128, 256])):x}",
        lambda: f"https://{some('aeinrst', 9)}.com/{some('abcdef/', 20)}?id={number(9)}&q={random.choice(words)}",
        lambda: f"/usr/{some('aeinrst', 6)}/lib{some('aeinrst', 8)}-{number(2)}.{number(2)}.{number(2)}.so",
        lambda: f"if ({some('aeinrst', 5)}_{some('xyz', 2)}[{number(2)}] != {number(3)}) {{ return {code()!r}; }}",
        lambda: random.choice(sentences).upper(),
        lambda: random.choice(words),
        lambda: some(punctuation + "…–“”•→✓😀", 12),  # noqa: RUF001
        lambda: " ".join(random.choices(words, k=random.choice([2, 3, 100, 300]))),
    ]
    made = [kind() for kind in kinds for _ in range(_EACH)]
    others = set(mixed_texts(judged=False) if judged else ())
    return [text for text in dict.fromkeys([*sentences, *made]) if text not in others]
