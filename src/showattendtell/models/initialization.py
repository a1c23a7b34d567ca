"""Initial weights of layers."""

from torch import nn

REGION_STD = 0.01
"""Standard deviation of the weights of layers that read regions. The regions of some networks are so large that larger
weights would saturate every tanh, and the decoder's state would have no effect."""


def start_small(layer: nn.Linear) -> nn.Linear:
    """Initialize the weights of a layer that reads regions with N(0, 0.01^2); return the layer."""
    nn.init.normal_(layer.weight, std=REGION_STD)
    return layer


def orthogonal_blocks(layer: nn.Linear) -> nn.Linear:
    """Initialize the LSTM's recurrent matrix (4n, n) with an orthogonal block (n, n) per gate; return the layer."""
    for block in layer.weight.chunk(4):
        nn.init.orthogonal_(block)
    return layer


def initialize_as_released(model: nn.Module) -> None:
    """Initialize weights as the released code does: square matrices orthogonal, others N(0, 0.01^2), biases 0.

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
