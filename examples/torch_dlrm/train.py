"""Trains DLRM in PyTorch on clicks in Criteo's shape, and writes the files of an export.

python -m examples.torch_dlrm.train [--out DIR], with torch and numpy
"""

# mypy: ignore-errors

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.distributed import checkpoint

from examples import criteo, requests, trained
from examples.columns import Columns, Ragged, size, take
from examples.torch_dlrm.model import Sizes
from examples.torch_dlrm.modules import DLRM
from scripts.torch_tower import write_tower

IDS = tuple(min(most, 10) for most in criteo.MULTI_HOT_SIZES)
SIZES = {
    "tiny": Sizes(criteo.scaled(300, 30), IDS, 4, (8,), (8,)),
    "small": Sizes(criteo.scaled(100_000, 20_000), IDS, 16, (64, 32), (128, 64)),
    "article": Sizes(criteo.VOCABULARY_SIZES, criteo.MULTI_HOT_SIZES, 16, (512, 256), (512, 256)),
}
EXAMPLES = {"tiny": 2_000, "small": 100_000, "article": 4_000_000}
BATCH = 1_000
CANDIDATES = 20
"""Number of candidates of a request."""


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    sizes = SIZES[scale]
    torch.manual_seed(7)
    model = DLRM(sizes)
    data = criteo.Clicks(sizes.rows, sizes.ids, seed=7)
    fit(model, *data.impressions(EXAMPLES[scale]))
    model.eval()

    contexts = data.contexts(requests.COUNT[scale])
    candidates = data.candidates(CANDIDATES * requests.COUNT[scale])
    pairs = requests.pairs(contexts, candidates)
    scores = call(model, pairs)
    bodies = requests.rankings(contexts, candidates)
    recorded = {**pairs, "recorded_click": scores}
    reference = trained.ReferenceRequests(bodies, {"score": scores}, recorded)
    trained.write_files(out, Path(__file__).parent, sizes, reference)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=out / "checkpoint")

    numbers, bags = tensors(take(pairs, np.arange(8)))
    with torch.no_grad():
        activations = model.embedding_bag_collection(bags)
    write_tower(model.tower, {"numbers": numbers, **activations}, out / "tower.npz")


def fit(model: DLRM, features: Columns, labels: Columns) -> None:
    """Trains once over the examples, and prints how the loss fell."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for first in range(0, size(features) - BATCH + 1, BATCH):
        batch = np.arange(first, first + BATCH)
        logits = model(*tensors(take(features, batch)))
        clicks = torch.from_numpy(labels["click"][batch])
        loss = torch.nn.functional.binary_cross_entropy(logits["click"], clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{len(losses)} steps: loss {losses[0]:.4f}, in the end {losses[-1]:.4f}")


def call(model: DLRM, columns: Columns) -> np.ndarray:
    """Returns the model's scores."""
    with torch.no_grad():
        return model(*tensors(columns))["click"].numpy()


def tensors(columns: Columns) -> tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Returns the numbers, and ids and offsets of each category."""
    bags = {}
    for name, column in columns.items():
        if name == "numbers":
            continue
        offsets = column.offsets if isinstance(column, Ragged) else np.arange(len(column) + 1)
        ids = column.values if isinstance(column, Ragged) else column
        bags[name] = (torch.from_numpy(ids), torch.from_numpy(offsets))
    return torch.from_numpy(columns["numbers"]), bags


if __name__ == "__main__":
    trained.command_line("torch_dlrm", train)
