"""Weight initialisation."""

from torch import nn

REGION_STD = 0.01
"""Standard deviation of layers that read regions, N(0, 0.01^2). The regions of some networks are so large that larger
weights would saturate every tanh, so that the decoder's state would have no effect."""


def start_small(layer: nn.Linear) -> nn.Linear:
    """Initialise the weights of a layer that reads regions with N(0, 0.01^2); return the layer."""
    nn.init.normal_(layer.weight, std=REGION_STD)
    return layer


def orthogonal_blocks(layer: nn.Linear) -> nn.Linear:
    """Initialise each of the LSTM's four recurrent blocks (4n, n) with an orthogonal matrix; return the layer."""
    for block in layer.weight.chunk(4):
        nn.init.orthogonal_(block)
    return layer


def initialise_as_released(model: nn.Module) -> None:
    """Initialise weights as the released code does: square matrices orthogonal, others N(0, 0.01^2), biases 0.

    The recurrent matrix (4n, n) is orthogonal block by block.
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
