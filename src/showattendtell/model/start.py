"""The LSTM's first state from the mean region (Xu et al. 2015, Sec. 3.1.2)."""

from torch import Tensor, nn

from showattendtell.model.initial import start_small
from showattendtell.model.steps import State


class SeparateStart(nn.Module):
    """h_0 and c_0 from a perceptron each: ReLU layers of width n with dropout behind them, then tanh.

    Args:
        depth: the layers of each, the tanh layer included.
    """

    def __init__(self, region_dim: int, hidden_dim: int, depth: int, dropout: float):
        super().__init__()
        self.hidden = _perceptron(region_dim, hidden_dim, hidden_dim, depth, dropout)
        self.cell = _perceptron(region_dim, hidden_dim, hidden_dim, depth, dropout)

    def forward(self, mean: Tensor) -> State:
        return State(self.hidden(mean), self.cell(mean))


class SharedStart(nn.Module):
    """h_0 and c_0 as two tanh layers on shared ReLU layers of width D, as in the released code.

    Args:
        depth: the layers to either, the tanh layer included.
    """

    def __init__(self, region_dim: int, hidden_dim: int, depth: int, dropout: float):
        super().__init__()
        self.shared = nn.Sequential(*_relu_layers(region_dim, region_dim, depth - 1, dropout))
        self.hidden = _head(region_dim, hidden_dim, reads_regions=depth == 1)
        self.cell = _head(region_dim, hidden_dim, reads_regions=depth == 1)

    def forward(self, mean: Tensor) -> State:
        shared = self.shared(mean)
        return State(self.hidden(shared), self.cell(shared))


def _perceptron(inputs: int, width: int, outputs: int, depth: int, dropout: float) -> nn.Sequential:
    layers = _relu_layers(inputs, width, depth - 1, dropout)
    return nn.Sequential(*layers, _head(width if layers else inputs, outputs, reads_regions=not layers))


def _relu_layers(inputs: int, width: int, count: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for number in range(count):
        linear = start_small(nn.Linear(inputs, width)) if number == 0 else nn.Linear(width, width)
        layers += [linear, nn.ReLU(), nn.Dropout(dropout)]
    return layers


def _head(inputs: int, outputs: int, reads_regions: bool) -> nn.Sequential:
    linear = nn.Linear(inputs, outputs)
    return nn.Sequential(start_small(linear) if reads_regions else linear, nn.Tanh())
