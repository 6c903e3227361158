"""A ranker of an item behind a history, as its author would write it for one candidate: a causal
transformer in Flax.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

ITEMS = 20_000


class Ranker(nn.Module):  # type: ignore[misc]
    """Scores an item behind a history of items, of which 0 is padding at the end.

    Attributes:
      history: The number of events.
      width: The width of the layers.
      layers: The number of layers.
      heads: The number of heads of attention.
    """

    history: int
    width: int
    layers: int
    heads: int

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, history: Any, item: Any) -> Any:
        """Returns [b] scores of [b, history] ids and [b] items."""
        table = self.param("items", nn.initializers.normal(0.5), (ITEMS, self.width))
        x = jnp.concatenate([table[history], table[item][:, None]], 1)
        positions = np.arange(self.history + 1)
        x = x + self.param("positions", nn.initializers.normal(0.1), (positions.size, self.width))
        is_event = jnp.concatenate([history != 0, jnp.ones((x.shape[0], 1), bool)], 1)
        mask = (positions[:, None] >= positions)[None, None] & is_event[:, None, None, :]
        for _ in range(self.layers):
            normal = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(self.heads)(normal, normal, mask=mask)
            wide = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(wide)
        return nn.Dense(1)(nn.LayerNorm()(x)[:, -1])[:, 0]


def build(history: int, width: int, layers: int, heads: int) -> Any:
    """Returns the shapes of the parameters, and the tower."""
    ranker = Ranker(history, width, layers, heads)

    def rank(parameters: Any, inputs: Any) -> dict[str, Any]:
        return {"score": ranker.apply(parameters, inputs["history"], inputs["item"])}

    return jax.eval_shape(lambda: initial(ranker)), {"rank": rank}


def initial(ranker: Ranker) -> Any:
    """Returns parameters, untrained."""
    zeros = np.zeros((2, ranker.history), np.int32)
    return ranker.init(jax.random.key(0), zeros, np.zeros(2, np.int32))
