"""The graphs of a small model, which are written once."""

from pathlib import Path

import pytest
import torch
from small_models import small_model

from showattendtell.decoding.confidence import Confidence
from showattendtell.extensions.export.graphs import ExportModel, export_model, write_graphs
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.runtime.tracing import lacks_onnx


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportModel]:
    """The folder of a small calibrated model's graphs, and the model."""
    if missing := lacks_onnx():
        pytest.skip(f"needs {missing}")
    folder, checkpoint = tmp_path_factory.mktemp("exported"), tmp_path_factory.mktemp("weights") / "best.ckpt"
    checkpoint.write_bytes(b"weights")
    small = small_model()
    width, curve = small.encoder.region_dim, torch.tensor([0.8, 0.4, -0.5])
    directions, _ = torch.linalg.qr(torch.randn(width, 2))
    confidence = Confidence(curve, torch.zeros(width), directions, torch.tensor(2.0))
    with plain_torch():
        model = export_model("small", small, checkpoint, 8, confidence)
        write_graphs(folder, model)
    return folder, model
