"""DLRM for click-through rates in PyTorch, with the parts and names that TorchRec gives it.

Source: Naumov et al., arXiv:1906.00091; TorchRec, torchrec/models/dlrm.py.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from examples.torch_dlrm.model import NUMBERS, Sizes, configs


class EmbeddingBagCollection(nn.Module):
    """Looks up features, as the class of this name in TorchRec: their ids lie one after another."""

    def __init__(self, tables: Sequence[Mapping]) -> None:
        super().__init__()
        self._table_of = {
            name: table["name"] for table in tables for name in table["feature_names"]
        }
        self.embedding_bags = nn.ModuleDict(
            {
                table["name"]: nn.EmbeddingBag(
                    table["num_embeddings"],
                    table["embedding_dim"],
                    mode=table["pooling"],
                    include_last_offset=True,
                )
                for table in tables
            }
        )

    def forward(self, bags: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Returns the vectors of each feature, [b, dim], from its ids and the offsets at which the
        ids of each example begin.
        """
        return {name: self.embedding_bags[self._table_of[name]](*bags[name]) for name in bags}


class Tower(nn.Module):
    """All that comes after the tables: bottom MLP, dot interaction, top MLP."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.features = [f"c{number}" for number in range(1, len(sizes.rows) + 1)]
        self.dense_arch = _mlp(NUMBERS, (*sizes.bottom, sizes.dim))
        vectors = 1 + len(self.features)
        self.register_buffer("pairs", torch.triu_indices(vectors, vectors, offset=1))
        self.over_arch = _mlp(sizes.dim + self.pairs.shape[1], sizes.top)
        self.head = nn.Linear(sizes.top[-1], 1)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Computes the probability of a click: [b].

        Args:
          inputs: The inputs by name: numbers, [b, 13], counts as in the log; c1, c2, ..., [b, dim],
            activations.
        """
        counts = torch.log1p(inputs["numbers"].clamp(min=0))
        numbers = self.dense_arch(counts)
        vectors = torch.stack([numbers, *(inputs[name] for name in self.features)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        interactions = products[:, self.pairs[0], self.pairs[1]]
        hidden = self.over_arch(torch.cat([numbers, interactions], dim=1))
        return {"click": torch.sigmoid(self.head(hidden)).squeeze(-1)}


class DLRM(nn.Module):
    """Tables and tower."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding_bag_collection = EmbeddingBagCollection(configs(sizes))
        self.tower = Tower(sizes)

    def forward(
        self, numbers: Tensor, bags: Mapping[str, tuple[Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """Computes the probability of a click: [b]."""
        return self.tower({"numbers": numbers, **self.embedding_bag_collection(bags)})


def _mlp(width: int, widths: Sequence[int]) -> nn.Sequential:
    layers = []
    for out_width in widths:
        layers += [nn.Linear(width, out_width), nn.ReLU()]
        width = out_width
    return nn.Sequential(*layers)
