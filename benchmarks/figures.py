"""Tables and plots of the figures in `figures.json`: `python -m benchmarks.figures` writes them into the documents."""

import json
import math
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FIGURES: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("figures.json").read_text())
DOCUMENTS = ("benchmarks/README.md", "docs/performance.md")
PLOT = "docs/assets/against-others.svg"

TABLE = re.compile(r"(?<=<!-- figures: )([\w ]+)( -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
WIDTH, LEFT, RIGHT = 480, 16, 62
COLOURS = {"TensorFlow": "#d9730d", "Grain": "#2f6fba", "PyTorch": "#c0392b", "Hugging Face": "#8a6d00"}
STYLE = """
.card{fill:#fff;stroke:#d5dae1} text{font:15px system-ui,"DejaVu Sans",Arial,sans-serif;fill:#1b2430}
.head{font-weight:600} .same{stroke:#5c6877;stroke-width:2}
@media(prefers-color-scheme:dark){.card{fill:#12171e;stroke:#343e4b} text{fill:#e8edf3} .same{stroke:#93a0b2}}
"""


def main() -> None:
    """Write every document with its tables, and the plot."""
    for name in DOCUMENTS:
        (ROOT / name).write_text(with_tables((ROOT / name).read_text()))
    (ROOT / PLOT).write_text(plot(FIGURES["peers"]))


def with_tables(document: str) -> str:
    """Return a document whose tables have the figures."""
    return TABLE.sub(lambda found: f"{found[1]}{found[2]}\n{table(found[1])}\n", document)


def table(name: str) -> str:
    """Return the rows of one table, without columns that are empty."""
    figures = FIGURES[name]
    columns = {
        "measured": lambda figure: figure["what"],
        "against": lambda figure: figure.get("peer"),
        "seen": lambda figure: f"{figure['seen']:g} {figure.get('unit', '')}".rstrip(),
        "goal": goal,
        "by": lambda figure: f"`{figure['file']}`" if "file" in figure else None,
    }
    filled = {title: cells for title, cell in columns.items() if any(cells := [cell(figure) for figure in figures])}
    lines = [list(filled), ["---"] * len(filled), *zip(*filled.values(), strict=True)]
    return "".join(f"| {' | '.join(cell or '' for cell in line)} |\n" for line in lines)


def goal(figure: dict[str, Any]) -> str | None:
    """Return the goal in words, and whether it is missed."""
    if (bound := figure.get("at_least", figure.get("at_most"))) is None:
        return None
    missed = figure["seen"] < bound if "at_least" in figure else figure["seen"] > bound
    words = f"at {'least' if 'at_least' in figure else 'most'} {bound:g} {figure.get('unit', '')}".rstrip()
    return f"{words}: **missed**" if missed else words


def plot(figures: list[dict[str, Any]]) -> str:
    """Return bars on a logarithmic scale as SVG; a bar that begins at 1 and leads to the left is slower."""
    ends = [math.log10(min(1, *(figure["seen"] for figure in figures))), math.log10(max(f["seen"] for f in figures))]
    scale = (WIDTH - LEFT - RIGHT) / (ends[1] - ends[0])
    same, y, parts = LEFT - ends[0] * scale, 12, []
    for peer, colour in COLOURS.items():
        y += 30
        parts.append(f'<text class="head" x="{LEFT}" y="{y}">Times as fast as {peer}</text>')
        for figure in sorted((f for f in figures if f["peer"] == peer), key=lambda f: -f["seen"]):
            y += 42
            reach = math.log10(figure["seen"]) * scale
            left, right = same + min(reach, 0), same + max(reach, 0)
            parts.append(f'<text x="{LEFT}" y="{y - 16}">{figure["what"]}</text>')
            parts.append(f'<rect x="{left:.1f}" y="{y - 10}" width="{right - left:.1f}" height="14" fill="{colour}"/>')
            parts.append(f'<path class="same" d="M{same:.1f} {y - 12}v18"/>')
            parts.append(f'<text x="{right + 6:.1f}" y="{y + 3}">{figure["seen"]:.3g}</text>')
    height = y + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
        f"<title>Speed of penstock in multiples of other libraries' speed</title><style>{STYLE}</style>"
        f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="10"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


if __name__ == "__main__":
    main()
