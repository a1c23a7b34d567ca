import pytest
import torch

from showattendtell.models.captioner import drop_channels
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.interfaces import DecoderState


@pytest.fixture
def decoder() -> LSTMDecoder:
    torch.manual_seed(0)
    return LSTMDecoder(vocabulary_size=9, region_dim=5, embedding_dim=3, hidden_dim=4).eval()


def test_the_recurrence_is_torchs_lstm_cell_on_word_and_context(decoder: LSTMDecoder):
    cell = torch.nn.LSTMCell(3 + 5, 4)
    admit, forget, output, candidate = range(4)
    torchs_order = (admit, forget, candidate, output)

    def in_torchs_order(matrix: torch.Tensor) -> torch.Tensor:
        return torch.cat([matrix.chunk(4)[gate] for gate in torchs_order])

    with torch.no_grad():
        inputs = torch.cat([decoder.read_word.weight, decoder.context_gates.weight], dim=1)
        cell.weight_ih.copy_(in_torchs_order(inputs))
        cell.weight_hh.copy_(in_torchs_order(decoder.hidden_gates.weight))
        cell.bias_ih.copy_(in_torchs_order(decoder.read_word.bias.unsqueeze(1)).squeeze(1))
        cell.bias_hh.zero_()
    word, context = torch.randn(2, 3), torch.randn(2, 5)
    state = DecoderState(torch.randn(2, 4), torch.randn(2, 4))
    ours = decoder.step(decoder.word_gates(word), context, state)
    hidden, memory = cell(torch.cat([word, context], dim=1), (state.hidden, state.cell))
    torch.testing.assert_close(ours.hidden, hidden)
    torch.testing.assert_close(ours.cell, memory)


def test_the_state_starts_from_the_mean_region_alone(decoder: LSTMDecoder):
    regions = torch.randn(1, 6, 5)
    shuffled = regions[:, torch.randperm(6)]
    spread = regions.mean(dim=1, keepdim=True).expand(1, 6, 5)
    for other in (shuffled, spread):
        for part, same in zip(decoder.init_state(regions), decoder.init_state(other), strict=True):
            torch.testing.assert_close(part, same)
    assert not torch.allclose(*decoder.init_state(regions))


def test_an_empty_deep_output_is_refused():
    with pytest.raises(ValueError, match="needs at least one of word, hidden, context"):
        LSTMDecoder(9, 5, output=[])


def test_channels_of_an_image_are_dropped_in_all_its_regions_alike():
    torch.manual_seed(0)
    decoder = LSTMDecoder(9, 400, embedding_dim=3, hidden_dim=4, dropout=0.25, dropout_places=["regions"])
    regions = torch.rand(2, 6, 400) + 1
    seen = drop_channels(decoder.region_dropout, regions) / regions
    assert {round(value, 4) for value in seen.unique().tolist()} == {0.0, round(1 / 0.75, 4)}
    torch.testing.assert_close(seen, seen[:, :1].expand_as(seen))
    assert not torch.equal(seen[0], seen[1])
    assert abs((seen == 0).float().mean() - 0.25) < 0.05
    assert drop_channels(decoder.eval().region_dropout, regions) is regions


def test_embeddings_are_dropped_for_each_word_by_itself():
    torch.manual_seed(0)
    decoder = LSTMDecoder(9, 5, embedding_dim=40, hidden_dim=4, dropout=0.5, dropout_places=["words"])
    tokens = torch.tensor([7, 7, 3])
    first, second, _ = decoder.embed_words(tokens)[0] != 0
    assert not torch.equal(first, second)
    same, again, _ = decoder.eval().embed_words(tokens)[0]
    torch.testing.assert_close(same, again)
