"""Captions photographs with the exported graphs beside this file; it needs numpy, Pillow and onnxruntime alone.

    python run_onnx.py photo.jpg other.jpg              beam 3
    python run_onnx.py photo.jpg --beam 1 --where       greedy, with the place that each word looked at

Letters for sizes: I images, B captions, T steps, L regions, V words, S the side of what the encoder sees.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from PIL import Image, ImageOps

Graphs = Mapping[str, Callable[..., list[ndarray]]]
"""`encode`, `begin`, `step` and `greedy`: from arrays to arrays, in the order in which captioner.json names them."""

Card = Mapping[str, Any]
"""What captioner.json says."""


class Caption(NamedTuple):
    """Words as ids, `<eos>` included, log p of them, alpha (T, L) and beta (T,)."""

    tokens: list[int]
    log_probability: float
    weights: ndarray
    gates: ndarray


def load(folder: Path) -> tuple[Card, Graphs]:
    """What is in the folder of an export."""
    import onnxruntime

    card = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))

    def opened(name: str) -> Callable[..., list[ndarray]]:
        session = onnxruntime.InferenceSession(folder / "onnx" / f"{name}.onnx", providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))

    return card, {name: opened(name) for name in card["graphs"]}


def see(photograph: Image.Image, card: Card) -> ndarray:
    """Its pixels (1, 3, S, S), uint8: scaled as `_scale` does, the central square cut out."""
    settings = card["preprocessing"]
    upright = ImageOps.exif_transpose(photograph)
    if upright.mode.startswith(("I", "F")):
        upright = _eight_bits(upright)
    if upright.has_transparency_data:
        picture = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    seen = _centre(_scale(upright.convert("RGB"), settings), settings["crop"], settings["crop"])
    return np.asarray(seen).transpose(2, 0, 1)[np.newaxis]


def _scale(image: Image.Image, settings: Mapping[str, Any]) -> Image.Image:
    """Its shortest side to `resize`, less what is far from its middle; with `squash` both sides."""
    if settings["crop_mode"] == "squash":
        strip, size = image, [settings["resize"]] * 2
    else:
        shortest = min(image.size)
        strip = _centre(image, *(min(side, settings["longest"] * shortest) for side in image.size))
        size = [settings["resize"] * side // shortest for side in strip.size]
    return strip.resize(size, Image.Resampling[settings["interpolation"].upper()])


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits scaled to 8. White is 65535, of floats 1 or 255; or the largest value if that is larger."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0).clip(0)
    whites = (1, 255, 65535) if image.mode == "F" else (65535,)
    white = next((white for white in whites if values.max() <= white), values.max())
    return Image.fromarray((values * 255 / white).astype(np.uint8))


def _centre(image: Image.Image, width: int, height: int) -> Image.Image:
    """The middle of an image, black around it where it is smaller."""
    left, top = _before(image.width - width), _before(image.height - height)
    return image.crop((left, top, left + width, top + height))


def _before(rest: int) -> int:
    """Of the pixels that are cut off, those on the left or above."""
    return round(rest / 2) if rest >= 0 else -(-rest // 2)


def _typed(pixels: ndarray, card: Card) -> ndarray:
    """As the graphs take them: as they are, or between 0 and 1."""
    return pixels if card["preprocessing"]["pixels"] == "uint8" else pixels.astype(np.float32) / 255


def write_greedy(graphs: Graphs, card: Card, pixels: ndarray) -> list[Caption]:
    """The likeliest word at every step, for images (I, 3, S, S) at once: the graph itself has the loop."""
    captions = []
    for tokens, total, weights, gates in zip(*graphs["greedy"](_typed(pixels, card)), strict=True):
        words = tokens.tolist()
        length = words.index(card["special"]["eos"]) + 1 if card["special"]["eos"] in words else len(words)
        captions.append(Caption(words[:length], float(total), weights[:length], gates[:length]))
    return captions


def write(graphs: Graphs, card: Card, pixels: ndarray, beam: int) -> Caption:
    """The likeliest caption of one image (1, 3, S, S) that `beam` open captions find. A caption that ends leaves its
    place to the next one, and the search ends when no open caption is likelier than the best that ended."""
    [regions] = graphs["encode"](_typed(pixels, card))
    keys, hidden, cell = graphs["begin"](regions)
    still_open = [Caption([], 0.0, np.empty((0, regions.shape[1]), np.float32), np.empty(0, np.float32))]
    words, parents, ended = [card["special"]["start"]], [0], None
    for _ in range(card["max_length"]):
        owners = np.zeros(len(words), np.int64)
        last = (hidden[parents], cell[parents], np.array(words, np.int64))
        log_p, weights, gates, hidden, cell = graphs["step"](regions, keys, owners, *last)
        longer = _continue(still_open, log_p, card["never_said"], 2 * beam)
        least = -np.inf if ended is None else ended.log_probability
        for score, parent, word in longer[:beam]:
            if word == card["special"]["eos"] and score > least:
                ended, least = _append(still_open[parent], score, word, weights[parent], gates[parent]), score
        kept = [one for one in longer if one[2] != card["special"]["eos"]][:beam]
        kept = [one for one in kept if one[0] > least]
        if not kept:
            break
        still_open = [_append(still_open[p], score, word, weights[p], gates[p]) for score, p, word in kept]
        parents, words = [parent for _, parent, _ in kept], [word for _, _, word in kept]
    return ended or still_open[0]


def _continue(captions: list[Caption], log_p: ndarray, never: list[int], number: int) -> list[tuple[float, int, int]]:
    """The likeliest captions with a word more, best first: log p, which caption each continues, the word."""
    log_p[:, never] = -np.inf
    scores = (np.array([[caption.log_probability] for caption in captions], np.float32) + log_p).ravel()
    best = np.argpartition(-scores, number)[:number] if number < len(scores) else np.arange(len(scores))
    best = best[np.argsort(-scores[best], kind="stable")]
    return [(float(scores[n]), int(n) // log_p.shape[1], int(n) % log_p.shape[1]) for n in best]


def _append(caption: Caption, score: float, word: int, weights: ndarray, gate: float) -> Caption:
    return Caption(
        [*caption.tokens, word], score, np.concatenate([caption.weights, [weights]]), np.append(caption.gates, gate)
    )


def spoken(caption: Caption, card: Card) -> list[str]:
    """The words before `<eos>`."""
    return [card["vocabulary"][token] for token in caption.tokens if token != card["special"]["eos"]]


def tell_where(caption: Caption, card: Card) -> None:
    rows, columns = card["grid"]
    for word, weights, gate in zip(spoken(caption, card), caption.weights, caption.gates, strict=False):
        row, column = divmod(int(weights.argmax()), columns)
        print(f"  {word}: row {row + 1} of {rows}, column {column + 1} of {columns}, beta {gate:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Captions photographs with the exported graphs beside this file.")
    parser.add_argument("photographs", nargs="+", type=Path)
    parser.add_argument("--beam", type=int, default=3, help="open captions of an image; 1 is greedy (default: 3)")
    parser.add_argument("--where", action="store_true", help="print which region each word looked at most, and beta")
    given = parser.parse_args()
    card, graphs = load(Path(__file__).parent)
    for path in given.photographs:
        with Image.open(path) as photograph:
            pixels = see(photograph, card)
        caption = write(graphs, card, pixels, given.beam) if given.beam > 1 else write_greedy(graphs, card, pixels)[0]
        print(f"{path}: {' '.join(spoken(caption, card))}")
        if given.where:
            tell_where(caption, card)


if __name__ == "__main__":
    main()
