"""Layout files in each of their formats, and the variables that they speak of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.units.export.checkpoint.tensor_bundles import field, write_bundle

PAGE = Path(__file__).parents[3].joinpath("docs/reference/layouts.md").read_text()
TOML = next(part for part in PAGE.split("```toml\n")[1:] if "sparse_core" in part).split("```")[0]
"""The example of the page."""
KEY = "params.embedding.users_items.table"
STACK = np.zeros((1920, 16), np.float32)
SPEC_TEXT = """
# as str() of the message writes it
stacked_table_specs {
  stack_name: "users_items"
  stack_vocab_size: 1920
  stack_embedding_dim: 16
  num_sparsecores: 8
  table_specs {
    table_name: "users" vocab_size: 1000 embedding_dim: 16
    feature_specs { feature_name: 'user' input_shape: 8 input_shape: 1 }
  }
  table_specs < table_name: "items"; vocab_size: 503, embedding_dim: 16
    row_offset_in_shard: 128 shard_rotation: 4 >
}
"""


def spec_bytes() -> bytes:
    users = field(1, "users") + field(2, 1000) + field(3, 16) + field(11, field(1, "user"))
    items = field(1, "items") + field(2, 503) + field(3, 16) + field(9, 128) + field(10, 4)
    stack = field(1, "users_items") + field(2, 1920) + field(3, 16) + field(9, 8)
    return field(1, stack + field(10, users) + field(10, items))


def write_documented(directory: Path, key: str = KEY) -> Path:
    """Writes the variables of the example; `key` is that of the stack."""
    words = np.zeros((2048, 16), np.float32)
    variables: dict[str, Any] = {key: STACK, "genres": STACK[:10], "ages": STACK[:128]}
    variables |= {"ages/Adam": STACK[:128], "words": words, "words/Adam": words}
    write_bundle(directory / "ckpt-1", variables)
    return directory
