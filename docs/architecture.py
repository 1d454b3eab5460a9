"""Draw docs/architecture.svg from the imports: ``python docs/architecture.py``.

Rows are the layers of .importlinter, boxes the folders, lines the imports between them: thin for one or two modules,
thick for ten and more. What nearly every folder imports is left out.
"""

from __future__ import annotations

import configparser
import re
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE = Path(__file__).with_suffix(".svg")
EVERYWHERE = {"artifact", "errors", "choices", "files", "outputs", "process", "ray_session", "storage"}
WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW = 760, 116, 30, 66  # pixels
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#64748b")


def layers() -> list[list[str]]:
    """Return the folders of each layer, the highest first."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    lines = contracts["importlinter:contract:layers"]["layers"].split("\n")
    rows = [["flows"], *(re.findall(r"\w+", line) for line in lines)]
    return [row for names in rows if (row := [name for name in names if name not in EVERYWHERE])]


def imports() -> Counter[tuple[str, str]]:
    """Return how many modules of one folder import from another."""
    graph = grimp.build_graph("cse", "flows", cache_dir=None, exclude_type_checking_imports=True)
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for target in graph.find_modules_directly_imported_by(module):
            ends = (_folder(module), _folder(target))
            if ends[0] != ends[1] and not EVERYWHERE & set(ends):
                found[ends] += 1
    return found


def _folder(module: str) -> str:
    root, _, rest = module.partition(".")
    return root if root == "flows" else rest.split(".")[0]


def picture() -> str:
    """Return the picture as SVG."""
    rows, centre = layers(), {}
    for number, row in enumerate(rows):
        gap = WIDTH / (len(row) + 1)
        for place, name in enumerate(row):
            # a step to the side, or lines between rows of one box would run through the boxes between
            aside = (-90, 0, 90)[number % 3] if len(row) == 1 else 0
            centre[name] = (gap * (place + 1) + aside, ROW * number + BOX_HEIGHT)
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(centre)}
    lines = []
    for (source, target), count in sorted(imports().items()):
        if source not in centre or target not in centre:
            continue
        (x, y), (to_x, to_y) = centre[source], centre[target]
        y, to_y = y + BOX_HEIGHT / 2, to_y - BOX_HEIGHT / 2
        bend, thickness = (to_y - y) / 2, 1 if count < 3 else 2 if count < 10 else 4
        lines.append(
            f'<path d="M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}" '
            f'fill="none" stroke="{colour[source]}" stroke-opacity="0.55" stroke-width="{thickness}">'
            f"<title>{source} imports {target}</title></path>"
        )
    boxes = [
        f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="5" fill="#fff" stroke="{colour[name]}" stroke-width="1.5"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{name}</text>'
        for name, (x, y) in centre.items()
    ]
    height = ROW * len(rows) + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
            'font-size="14">',
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
