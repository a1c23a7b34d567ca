"""First weights."""

from torch import nn

REGION_STD = 0.01
"""Layers that read regions start with N(0, 0.01^2): the regions of some networks are so large that wider weights would
drive every tanh to its ends, where the decoder's state has no say in them."""


def start_small(layer: nn.Linear) -> nn.Linear:
    """The layer, its weights drawn anew for reading regions."""
    nn.init.normal_(layer.weight, std=REGION_STD)
    return layer


def orthogonal_blocks(layer: nn.Linear) -> nn.Linear:
    """The layer, with an orthogonal matrix for each of the LSTM's four recurrent blocks (4n, n)."""
    for block in layer.weight.chunk(4):
        nn.init.orthogonal_(block)
    return layer


def initialise_as_released(model: nn.Module) -> None:
    """The released code's first weights: N(0, 0.01^2), orthogonal where a matrix is square, biases 0.

    The recurrent matrix (4n, n), which it keeps as one, is orthogonal block by block.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            rows, columns = layer.weight.shape
            if rows == columns:
                nn.init.orthogonal_(layer.weight)
            else:
                nn.init.normal_(layer.weight, std=REGION_STD)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] == "hidden_gates" and isinstance(layer, nn.Linear):
            orthogonal_blocks(layer)
