"""Draw figures/package.svg, the folders of the package by layer, from the table in tests/test_layers.py."""

from pathlib import Path
from runpy import run_path

ROOT = Path(__file__).parent.parent
FIGURE = ROOT / "docs/figures/package.svg"

CONTENTS = {
    "extensions": "latent, transformer, distillation",
    "training": "LightningModule, Trainer",
    "serving": "web page, JSON endpoint",
    "reproduction": "tables of runs",
    "inference": "load, checkpoints, evaluation",
    "config": "Hydra: schemas, validation, sweeps, trust",
    "datamodules": "data modules, batch samplers",
    "losses": "soft, hard, self-critical",
    "export": "ONNX, torch.export",
    "features": "feature cache",
    "decoding": "beam search, sampling",
    "visualization": "heatmaps, HTML pages",
    "metrics": "BLEU, CIDEr, attention",
    "models": "encoder, attention, LSTM",
    "data": "readers, splits, vocabulary, images",
    "types": "data types",
    "runtime": "files, processes, random states",
    "errors": "UserError",
    "settings": "types of settings",
}
"""Each folder or module with two or three of its contents, from the top of the diagram to its bottom."""

COLORS = {"commands": "#bbdefb", "training": "#c8e6c9", "inference": "#c8e6c9", "config": "#eceff1"}
COLORS |= {"datamodules": "#ffe0b2", "features": "#ffe0b2", "metrics": "#ffe0b2"}
"""The color of a row by its first box; other rows are gray."""

LEFT, RIGHT, TOP, PITCH, HEIGHT, GAP = 70, 884, 16, 52, 44, 8


def package_svg() -> str:
    """The diagram as SVG."""
    rows = [[("commands", "train, evaluate, caption, serve, ...")]]
    rows += [[(name, text) for name, text in CONTENTS.items() if name in layer] for layer in layers()[-2::-1]]
    size = TOP + PITCH * len(rows) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {size}" width="900" height="{size}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="15" fill="#212121" text-anchor="middle" role="img"'
        ' aria-labelledby="title">',
        f'  <title id="title">The folders of the package in {len(rows)} rows, from the commands down to errors and'
        " settings. A module imports only its own folder and the rows below it.</title>",
        "  <defs>",
        '    <marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10z" fill="#37474f"/></marker>',
        "  </defs>",
        f'  <rect width="900" height="{size}" rx="8" fill="#ffffff"/>',
        f'  <path d="M46 26V{size - 26}" fill="none" stroke="#37474f" stroke-width="1.6" marker-end="url(#arrow)"/>',
        f'  <text transform="translate(34 {size // 2}) rotate(-90)" font-size="13">imports</text>',
    ]
    for number, row in enumerate(rows):
        width = (RIGHT - LEFT - GAP * (len(row) - 1)) // len(row)
        fill = COLORS.get(row[0][0], "#eceff1")
        for place, (name, text) in enumerate(row):
            left, top = LEFT + place * (width + GAP), TOP + PITCH * number
            middle = left + width // 2
            lines += [
                f'  <rect x="{left}" y="{top}" width="{width}" height="{HEIGHT}" rx="5" fill="{fill}"'
                ' stroke="#37474f"/>',
                f'  <text x="{middle}" y="{top + 19}" font-weight="bold">{name}</text>'
                f'<text x="{middle}" y="{top + 36}" font-size="13">{text}</text>',
            ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def layers() -> list[set[str]]:
    """The layers of the package from the bottom to the commands."""
    layers: list[set[str]] = run_path(str(ROOT / "tests/test_layers.py"))["LAYERS"]
    return layers


if __name__ == "__main__":
    FIGURE.write_text(package_svg(), encoding="utf-8")
