"""Word vectors from text files and matrices, and the embeddings that begin with them."""

import re
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from showattendtell.data.vocabulary import SPECIAL, Vocabulary
from showattendtell.data.word_vectors import WORDLLAMA, read_word_vectors
from showattendtell.errors import UserError
from showattendtell.inference.initial import load_word_vectors
from showattendtell.models.decoder import LSTMDecoder

WORDS = ("dog", "cat", "new york", "unheard")


@pytest.mark.parametrize("first", ["", "4 2\n"], ids=["GloVe", "word2vec"])
def test_a_text_file_has_a_word_and_its_vector_in_each_line(tmp_path: Path, first: str):
    (tmp_path / "vectors.txt").write_text(f"{first}the 0 0\ndog 1 -2\nnew york 0.5 3e-1 \ncat 4 5\n")
    found = read_word_vectors(str(tmp_path / "vectors.txt"), WORDS)
    expected = {"dog": [1.0, -2.0], "new york": [0.5, 0.3], "cat": [4.0, 5.0]}
    assert {word: vector.tolist() for word, vector in found.items()} == {
        word: pytest.approx(vector) for word, vector in expected.items()
    }


def write_matrix(folder: Path, rows: Sequence[Sequence[float]], **others: torch.Tensor) -> str:
    """A matrix for a tokenizer of letters, in which a is row 0, c row 1 and t row 2."""
    tokenizer = Tokenizer(WordLevel({"a": 0, "c": 1, "t": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"embeddings": torch.tensor(rows), **others}, folder / "model.safetensors")
    return str(folder / "model.safetensors")


def test_the_vector_of_a_word_is_the_mean_of_those_of_its_tokens(tmp_path: Path):
    found = read_word_vectors(write_matrix(tmp_path, [[3.0, 0.0], [0.0, 6.0], [9.0, 0.0]]), ["cat", "a"])
    assert {word: vector.tolist() for word, vector in found.items()} == {"cat": [4.0, 2.0], "a": [3.0, 0.0]}


def test_the_package_wordllama_has_similar_vectors_for_similar_words():
    pytest.importorskip("wordllama", reason="needs wordllama, which make setup installs")
    found = read_word_vectors(WORDLLAMA, ["dog", "puppy", "skateboard", "surfboard", "beach", "ocean", "sky"])
    vectors = torch.nn.functional.normalize(torch.stack(list(found.values())), dim=1)
    nearest = (vectors @ vectors.T).fill_diagonal_(-1).argmax(dim=1)
    assert vectors.shape[1] == 256
    assert nearest[:6].tolist() == [1, 0, 3, 2, 5, 4]


def decoder(vocabulary: Vocabulary, width: int) -> LSTMDecoder:
    torch.manual_seed(0)
    return LSTMDecoder(len(vocabulary), region_dim=3, embedding_dim=width, hidden_dim=4)


def test_embeddings_begin_with_the_vectors_at_a_mean_length_of_1(tmp_path: Path):
    (tmp_path / "vectors.txt").write_text("dog 3 4\ncat 0 15\n")
    vocabulary = Vocabulary([*SPECIAL, "cat", "bird", "dog"])
    drawn, loaded = (decoder(vocabulary, 2) for _ in range(2))
    assert load_word_vectors(loaded, vocabulary, str(tmp_path / "vectors.txt")) == 2
    expected = drawn.embedding.weight.detach().clone()
    expected[4], expected[6] = torch.tensor([0.0, 1.5]), torch.tensor([0.3, 0.4])  # lengths 15 and 5, divided by 10
    torch.testing.assert_close(loaded.embedding.weight.detach(), expected)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("dog 1 2\ncat 1\n", r"vectors.txt line 2 has no vector of 2 numbers after the word 'cat'"),
        ("dog 1 2\ncat 1 two\n", r"line 2 has no vector of 2 numbers"),
        ("dog 1 nan\n", r"line 1 has no vector"),
        ("dog\n", r"line 1 has no vector"),
        ("", "has none of the words"),
        ("haus 1 2\n", "has none of the words of the vocabulary; give vectors in the captions' language"),
    ],
)
def test_a_text_file_that_has_no_vectors_is_reported(tmp_path: Path, content: str, fault: str):
    (tmp_path / "vectors.txt").write_text(content)
    with pytest.raises(UserError, match=fault):
        read_word_vectors(str(tmp_path / "vectors.txt"), WORDS)


def test_a_line_is_read_in_parts(tmp_path: Path):
    (tmp_path / "vectors.txt").write_text(f"dog 1 2\n{'0 ' * 20_000_000}\ncat 4 5\n")
    tracemalloc.start()
    found = read_word_vectors(str(tmp_path / "vectors.txt"), WORDS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["cat"].tolist() == [4, 5]
    assert peak < 100_000_000


def test_files_that_do_not_fit_are_reported(tmp_path: Path):
    rows = [[3.0, 0.0], [0.0, 6.0], [9.0, 0.0]]
    with pytest.raises(UserError, match=r"cannot be used with tokenizer.json \(No such file"):
        read_word_vectors(str(tmp_path / "model.safetensors"), WORDS)
    with pytest.raises(UserError, match="out of bounds"):
        read_word_vectors(write_matrix(tmp_path, rows[:2]), ["cat"])
    with pytest.raises(UserError, match="has 2 matrices"):
        read_word_vectors(write_matrix(tmp_path, rows, other=torch.zeros(2, 2)), ["cat"])
    with pytest.raises(UserError, match="not finite"):
        read_word_vectors(write_matrix(tmp_path, [[float("nan"), 0.0], *rows]), ["cat"])
    vocabulary, source = Vocabulary([*SPECIAL, "cat"]), write_matrix(tmp_path, rows)
    with pytest.raises(UserError, match=re.escape("set decoder.embedding_dim=2")):
        load_word_vectors(decoder(vocabulary, 3), vocabulary, source)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 50)
    with pytest.raises(UserError, match="model.safetensors cannot be used"):
        read_word_vectors(source, ["cat"])
