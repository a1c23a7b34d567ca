import pytest
import torch
from torch import Tensor

from showattendtell.models.attention import MeanAttention
from showattendtell.models.baselines import LogBilinearDecoder, NICDecoder
from showattendtell.models.captioner import Captioner, drop_channels
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.interfaces import Decoder, DecoderState
from showattendtell.text.vocabulary import EOS, START


def in_torchs_order(ours: Tensor) -> Tensor:
    admit, forget, output, candidate = ours.chunk(4)
    return torch.cat([admit, forget, candidate, output])


def test_the_recurrence_is_torchs_lstm_cell_on_word_and_context():
    torch.manual_seed(0)
    decoder, cell = LSTMDecoder(9, 5, embedding_dim=3, hidden_dim=4).eval(), torch.nn.LSTMCell(3 + 5, 4)
    with torch.no_grad():
        inputs = torch.cat([decoder.read_word.weight, decoder.context_gates.weight], dim=1)
        cell.weight_ih.copy_(in_torchs_order(inputs))
        cell.weight_hh.copy_(in_torchs_order(decoder.hidden_gates.weight))
        cell.bias_ih.copy_(in_torchs_order(decoder.read_word.bias))
        cell.bias_hh.zero_()
    word, context = torch.randn(2, 3), torch.randn(2, 5)
    state = DecoderState(torch.randn(2, 4), torch.randn(2, 4))
    ours = decoder.step(decoder.word_gates(word), context, state)
    hidden, memory = cell(torch.cat([word, context], dim=1), (state.hidden, state.cell))
    torch.testing.assert_close(ours.hidden, hidden)
    torch.testing.assert_close(ours.cell, memory)


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


V, D, M, N = 9, 5, 3, 4
REGIONS = torch.randn(2, 6, D, generator=torch.Generator().manual_seed(0))
OWNERS = torch.tensor([0, 1])
TOKENS = torch.tensor([[4, 5, 6, EOS], [7, 8, 4, EOS]])


def spread(model: torch.nn.Module) -> None:
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)


def logits_of(decoder: Decoder, tokens: Tensor) -> Tensor:
    """(B, T, V)"""
    trace = Captioner(MeanAttention(D, N), decoder)(REGIONS, OWNERS, tokens)
    return trace.at_steps(trace.logits)


def test_nic_is_torchs_lstm_over_the_image_and_then_the_words():
    decoder = NICDecoder(V, D, M, N).eval()
    spread(decoder)
    lstm = torch.nn.LSTM(M, N, batch_first=True)
    with torch.no_grad():
        for ours, torchs in (
            (decoder.read_word.weight, lstm.weight_ih_l0),
            (decoder.hidden_gates.weight, lstm.weight_hh_l0),
            (decoder.read_word.bias, lstm.bias_ih_l0),
        ):
            torchs.copy_(in_torchs_order(ours))
        lstm.bias_hh_l0.zero_()
    image = decoder.image(REGIONS.mean(dim=1)).unsqueeze(1)
    words = decoder.embedding(torch.cat([torch.full((2, 1), START), TOKENS[:, :-1]], dim=1))
    hidden = lstm(torch.cat([image, words], dim=1))[0][:, 1:]
    logits = logits_of(decoder, TOKENS)
    torch.testing.assert_close(logits, decoder.word_scores(hidden))


def test_log_bilinear_predicts_from_the_window_of_words_and_the_image():
    decoder = LogBilinearDecoder(V, D, M, N, window=2).eval()
    spread(decoder)
    logits = logits_of(decoder, TOKENS)
    newest, oldest = decoder.words.weight.chunk(2, dim=1)
    for row in range(2):
        said = [torch.zeros(M), *(decoder.embedding.weight[word] for word in (START, *TOKENS[row, :-1].tolist()))]
        for step in range(4):
            r = oldest @ said[step] + newest @ said[step + 1] + decoder.words.bias
            r = r + decoder.image.weight @ REGIONS[row].mean(dim=0)
            torch.testing.assert_close(logits[row, step], decoder.word_scores(r))
