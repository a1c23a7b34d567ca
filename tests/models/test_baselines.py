import torch
from torch import Tensor

from showattendtell.models.attention import MeanAttention
from showattendtell.models.baselines import LogBilinearDecoder, NICDecoder
from showattendtell.models.captioner import Captioner
from showattendtell.models.interfaces import Decoder
from showattendtell.text.vocabulary import EOS, START

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
    admit, forget, output, candidate = range(4)
    with torch.no_grad():
        for ours, torchs in (
            (decoder.read_word.weight, lstm.weight_ih_l0),
            (decoder.hidden_gates.weight, lstm.weight_hh_l0),
            (decoder.read_word.bias, lstm.bias_ih_l0),
        ):
            torchs.copy_(torch.cat([ours.chunk(4)[gate] for gate in (admit, forget, candidate, output)]))
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
