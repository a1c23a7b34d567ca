"""Caption photographs with the exported graphs in this folder; requires only numpy, Pillow and onnxruntime.

    python run_onnx.py photo.jpg other.jpg              beam 3
    python run_onnx.py photo.jpg --beam 1 --where       greedy, with the region of each word

Sizes: I images, B captions, T steps, L regions, V words, S the side of what the encoder sees.
"""

import argparse
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from PIL import Image, ImageOps

Graphs = Mapping[str, Callable[..., list[ndarray]]]
"""`encode`, `begin`, `step`, and `unlikeness` of a calibrated model: functions from arrays to arrays, in the order of
captioner.json."""

Card = Mapping[str, Any]
"""Content of captioner.json."""


class OnnxCaption(NamedTuple):
    """Token ids including `<eos>`, log p of the caption, alpha (T, L), beta (T,) and the sum of the tokens' calibrated
    log p, which is log p itself if the model is not calibrated."""

    tokens: list[int]
    log_prob: float
    attention: ndarray
    gates: ndarray
    calibrated: float = 0.0


class CaptionedPhotograph(NamedTuple):
    """A caption as text and in words, its confidence, 0 to 1, whether the model is not sure of the photograph, and the
    attention map (rows, columns) and beta of each word."""

    text: str
    words: list[str]
    confidence: float
    not_sure: bool
    attention: ndarray
    gates: ndarray


FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "HEIF", "PPM")  # HEIF with pillow-heif


def read(path: str | Path) -> Image.Image:
    """Read a photograph; raise `ValueError` if it is none, is damaged, or is larger than Pillow's limit."""
    Image.init()
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    formats = [name for name in FORMATS if name in Image.OPEN]
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=formats) as photograph:
            photograph.load()
            return photograph
    except Exception as error:  # Pillow's decoders raise many types
        raise ValueError(f"{path} cannot be read ({error}); give a {', '.join(formats)} file") from None


def open_graph(path: Path) -> Callable[..., list[ndarray]]:
    """Return an ONNX graph as a function from arrays to arrays."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


@cache
def load(folder: Path) -> tuple[Card, Graphs]:
    """Load captioner.json and the graphs of an export folder."""
    card = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))
    return card, {name: open_graph(folder / "onnx" / f"{name}.onnx") for name in card["graphs"]}


def preprocess(photograph: Image.Image, card: Card) -> ndarray:
    """Return the photograph's pixels (1, 3, S, S), uint8, cropped to the central square.

    Before, the shortest side is scaled to `resize`, after a central crop of very long images; with `squash`, both.
    """
    settings = card["preprocessing"]
    upright = ImageOps.exif_transpose(photograph)
    if upright.mode.startswith(("I", "F")):
        upright = _eight_bits(upright)
    if upright.has_transparency_data:
        picture = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    picture = upright.convert("RGB")
    shortest, resampling = min(picture.size), Image.Resampling[settings["interpolation"].upper()]
    longest = settings["longest"] * shortest
    if settings["crop_mode"] == "squash":
        size = [settings["resize"]] * 2
        # a resize of 1 x N to a square makes `resize` x N pixels in between; the long side alone first makes few
        picture = picture.resize([min(side, max(longest, 4 * size[0])) for side in picture.size], resampling)
    else:
        picture = _center(picture, *(min(side, longest) for side in picture.size))
        size = [settings["resize"] * side // shortest for side in picture.size]
    # the width first, as torchvision; Pillow may begin with the height
    resized = picture.resize((size[0], picture.height), resampling).resize(size, resampling)
    cropped = _center(resized, settings["crop"], settings["crop"])
    return np.asarray(cropped).transpose(2, 0, 1)[np.newaxis]


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale grey of 16 or 32 bits to 8. White is 65535, for floats 1 or 255; or the maximum if that is larger."""
    whites = (1, 255, 65535) if image.mode == "F" else (65535,)
    maximum: Any = image.getextrema()[1]
    white = next((white for white in whites if maximum <= white), maximum)
    return image.point(lambda value: value * (255 / white)).convert("L")


def _center(image: Image.Image, width: int, height: int) -> Image.Image:
    """Crop the center of an image; a smaller image is padded with black."""
    # of an odd number of pixels, the larger half of what is cropped or added may be on the left or top
    left, top = (
        round(rest / 2) if rest >= 0 else -(-rest // 2) for rest in (image.width - width, image.height - height)
    )
    return image.crop((left, top, left + width, top + height))


def start(graphs: Graphs, pixels: ndarray) -> list[Any]:
    """Return the regions and keys of one image (1, 3, S, S), and the state before the first word."""
    [regions] = graphs["encode"](pixels)
    return [regions, *graphs["begin"](regions)]


def beam_search(graphs: Graphs, card: Card, started: list[Any], beam: int) -> OnnxCaption:
    """Beam search for the likeliest caption of an image that was `started`, with `beam` open captions. A caption that
    ends is replaced by the next best; the search ends when no open caption is likelier than the best that ended."""
    regions, keys, hidden, cell = started
    eos, suppressed = card["special"]["eos"], card["suppressed_tokens"]
    captions = [OnnxCaption([], 0.0, np.empty((0, regions.shape[1]), np.float32), np.empty(0, np.float32))]
    words, parents, ended = [card["special"]["start"]], [0], captions[0]._replace(log_prob=-np.inf)
    for _ in range(card["max_length"]):
        last = (np.zeros(len(words), np.int64), hidden[parents], cell[parents], np.array(words, np.int64))
        log_probs, attention, gates, hidden, cell = graphs["step"](regions, keys, *last)
        calibrated = _calibrate(log_probs, card)
        log_probs[:, suppressed] = -np.inf
        scores = np.array([[caption.log_prob] for caption in captions], np.float32) + log_probs
        likeliest = np.argsort(-scores, axis=None, kind="stable")[: 2 * beam]
        going = []
        for rank, (parent, word) in enumerate(np.transpose(np.unravel_index(likeliest, scores.shape)).tolist()):
            tokens, _, maps, betas, total = captions[parent]
            caption = OnnxCaption(
                [*tokens, word],
                float(scores[parent, word]),
                np.vstack([maps, attention[parent]]),
                np.append(betas, gates[parent]),
                total + float(calibrated[parent, word]),
            )
            if word != eos:
                going.append((parent, caption))
            elif rank < beam and caption.log_prob > ended.log_prob:
                ended = caption
        going = [(parent, caption) for parent, caption in going[:beam] if caption.log_prob > ended.log_prob]
        if not going:
            break
        parents, captions = map(list, zip(*going, strict=True))
        words = [caption.tokens[-1] for caption in captions]
    return ended if ended.tokens else captions[0]


def assess(graphs: Graphs, card: Card, started: list[Any], caption: OnnxCaption) -> tuple[float, bool]:
    """Return the confidence of a caption of an image, 0 to 1, and whether the model is not sure of the image.

    The confidence is the geometric mean of the tokens' probabilities, which are calibrated if the model is.
    """
    not_sure = False
    if "calibration" in card:
        [unlikeness] = graphs["unlikeness"](started[0])
        not_sure = bool(unlikeness[0] > card["calibration"]["threshold"])
    return float(np.exp(caption.calibrated / max(1, len(caption.tokens)))), not_sure


def _calibrate(log_probs: ndarray, card: Card) -> ndarray:
    """Return a copy of log p (B, V), calibrated if the model is: see `Confidence` of the package."""
    if "calibration" not in card:
        return log_probs.copy()
    a, b, c = card["calibration"]["curve"]
    others = np.exp(log_probs.astype(np.float64))
    best = np.arange(len(others)), others.argmax(axis=1)
    others[best] = 0
    rest = others.sum(axis=1)
    log_odds = a * log_probs[best] - b * np.log(rest) + c
    q, share = np.exp(-np.logaddexp(0, -log_odds)), np.exp(-np.logaddexp(0, log_odds))
    factor = np.minimum(share / rest, q / others.max(axis=1))
    left = np.maximum(share - factor * rest, 0) / log_probs.shape[1]
    calibrated = factor[:, None] * others
    calibrated[best] = q
    return np.log(calibrated + left[:, None])


def words_of(tokens: list[int], card: Card) -> list[str]:
    """Return the words before `<eos>`."""
    return [card["vocabulary"][token] for token in tokens if token != card["special"]["eos"]]


def sentence_of(tokens: list[int], card: Card) -> str:
    """Return the caption as a sentence."""
    joining = card["detokenizer"]
    text = joining["separator"].join(words_of(tokens, card))
    for pattern, replacement in joining["replacements"]:
        text = re.sub(pattern, replacement, text)
    return str(text)


def caption(photograph: str | Path | Image.Image, beam: int = 3) -> CaptionedPhotograph:
    """Caption a photograph with the graphs in the folder of this file.

    Args:
        photograph: a file or an image.
        beam: open captions of beam search; 1 is greedy.

    Raises:
        ValueError: the photograph cannot be read.
    """
    card, graphs = load(Path(__file__).parent)
    pixels = preprocess(photograph if isinstance(photograph, Image.Image) else read(photograph), card)
    started = start(graphs, pixels)
    output = beam_search(graphs, card, started, beam)
    confidence, not_sure = assess(graphs, card, started, output)
    words = words_of(output.tokens, card)
    maps = output.attention[: len(words)].reshape(-1, *card["grid"])
    return CaptionedPhotograph(
        sentence_of(output.tokens, card), words, confidence, not_sure, maps, output.gates[: len(words)]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Captions photographs with an exported model.")
    parser.add_argument("photographs", nargs="+", type=Path)
    about_beam = "open captions of an image, 1 to 20; 1 is greedy (default: 3)"
    parser.add_argument("--beam", type=int, default=3, choices=range(1, 21), metavar="BEAM", help=about_beam)
    parser.add_argument("--where", action="store_true", help="print which region each word looked at most, and beta")
    arguments = parser.parse_args()
    failed = 0
    for path in arguments.photographs:
        try:
            output = caption(path, arguments.beam)
        except ValueError as error:
            print(error, file=sys.stderr)
            failed = 1
            continue
        print(f"{path}: {output.text}{' (not sure)' if output.not_sure else ''}")
        print(f"  confidence {output.confidence:.2f}")
        if arguments.where:
            _, rows, columns = output.attention.shape
            for word, attention, gate in zip(output.words, output.attention, output.gates, strict=True):
                row, column = divmod(int(attention.argmax()), columns)
                print(f"  {word}: row {row + 1} of {rows}, column {column + 1} of {columns}, beta {gate:.2f}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
