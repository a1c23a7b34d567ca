"""Word vectors of other models: text files, and matrices of token embeddings."""

import math
from collections.abc import Collection, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import rich.progress
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from showattendtell.errors import UserError, first_line, printable
from showattendtell.runtime.files import check_regular, expand_home

WORDLLAMA = "wordllama"
"""A package whose wheel contains a matrix of token embeddings (Miller 2024, MIT license)."""

TOKENIZER = "tokenizer.json"

LONGEST_LINE = 1_000_000
"""Largest number of characters that are read as a line; 4096 numbers take 50,000."""


def read_word_vectors(source: str, words: Collection[str]) -> dict[str, Tensor]:
    """Return the vectors, (m,) each, of those words that a source has.

    Args:
        source: one of

            - a text file with a word and its vector in each line, as of GloVe, word2vec and fastText;
            - a safetensors file with one matrix, a row for each token of the `tokenizer.json` next to it, as of
              model2vec and of StaticEmbedding in Sentence Transformers. The vector of a word is the mean of the vectors
              of its tokens;
            - `wordllama`, the matrix in the package of this name.

    Raises:
        UserError: the source is missing or damaged, or has none of the words.
    """
    if source == WORDLLAMA:
        vectors = _token_means(*_wordllama_files(), words)
    elif (path := expand_home(source)).suffix == ".safetensors":
        vectors = _token_means(path, path.parent / TOKENIZER, words)
    else:
        vectors = dict(_lines(path, words))
    if not vectors:
        raise UserError(f"{source} has none of the words of the vocabulary; give vectors in the captions' language")
    return vectors


def _wordllama_files() -> tuple[Path, Path]:
    spec = find_spec(WORDLLAMA)
    if spec is None or spec.origin is None:
        raise UserError("init_embeddings=wordllama needs the package wordllama; run pip install wordllama")
    folder = Path(spec.origin).parent
    [matrix], [tokenizer] = folder.glob("weights/*.safetensors"), folder.glob("tokenizers/*.json")
    return matrix, tokenizer


def _token_means(matrix: Path, tokenizer: Path, words: Collection[str]) -> dict[str, Tensor]:
    try:
        matrices = [tensor for tensor in load_file(matrix).values() if tensor.ndim == 2]
        if len(matrices) != 1:
            raise ValueError(f"it has {len(matrices)} matrices")
        tokenize = Tokenizer.from_file(str(tokenizer)).encode
        tokens = {word: tokenize(word, add_special_tokens=False).ids for word in words}
        vectors = {word: matrices[0][ids].float().mean(dim=0) for word, ids in tokens.items() if ids}
        if not all(vector.isfinite().all() for vector in vectors.values()):
            raise ValueError("it has values that are not finite")
    except Exception as error:  # the class that tokenizers raises
        files = f"{matrix} cannot be used with {tokenizer.name} ({first_line(error)})"
        raise UserError(f"{files}; give one matrix, next to the tokenizer of its rows") from None
    return vectors


def _lines(path: Path, words: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield words and vectors of a text file. A first line with the numbers of words and columns is skipped."""
    width = 0
    try:
        check_regular(path)
        with rich.progress.open(path, "r", encoding="utf-8", errors="replace", description="word vectors") as file:
            for i, line in enumerate(iter(partial(file.readline, LONGEST_LINE), ""), start=1):
                word, *fields = line.rstrip().split(" ")
                if i == 1 and len(fields) == 1:
                    continue
                width = width or len(fields)
                # some words contain spaces
                word, values = " ".join([word, *fields[:-width]]), fields[-width:]
                if word not in words:
                    continue
                vector = [float(value) for value in values]
                if not vector or len(vector) != width or not all(map(math.isfinite, vector)):
                    raise ValueError
                yield word, torch.tensor(vector)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); set init_embeddings to another file") from None
    except ValueError:
        raise UserError(
            f"{path} line {i} has no vector of {width} numbers after the word {printable(repr(word), 40)}; give a "
            "file with a word and its vector in each line"
        ) from None
