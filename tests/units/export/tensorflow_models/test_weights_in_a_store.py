"""Which variables of a checkpoint in a store are copied for the reference model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Duplicate, Statements
from export.checkpoint.reader import open_checkpoint
from export.front_end.specs import ModelSpec, TableFacts
from export.tensorflow_models.model.dense_copy import local_prefix
from object_store.remote_path import RemotePath
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.traced_models import one_table_recipe
from tests.units.object_store.memory_stores import uploaded

SMALL = np.arange(1, 61, dtype=np.float32).reshape(20, 3)
LARGE = np.ones((30_000, 1024), np.float32)
VARIABLES = {
    "user/embeddings": SMALL,
    "user/embeddings/Adagrad": SMALL + 1,
    "user again": SMALL + 1,
    "inside/embeddings": SMALL + 2,
    "large/embeddings": LARGE,
    "out/kernel": SMALL[1:3],
}


def test_copy_of_a_checkpoint_in_a_store_lacks_what_the_reference_never_restores(
    tmp_path: Path,
) -> None:
    """Tables that left the towers, their copies, and what is too large for a tower."""
    write_bundle(tmp_path / "c/ckpt-1", VARIABLES)
    checkpoint = open_checkpoint(
        uploaded(tmp_path / "c", RemotePath(f"counted://{tmp_path.name}")) / "ckpt-1"
    )
    inventory = recognize(checkpoint, Statements({"user": "user/embeddings"}))
    inventory = replace(inventory, duplicates=(Duplicate("user again", "user/embeddings", 0),))
    model = ModelSpec({"user": TableFacts("user", "user", 20, 3)}, {}, {})

    job = one_table_recipe("build")
    prefix = local_prefix(checkpoint, inventory, model, job, tmp_path / "copy")

    name = "ckpt-1.data-00000-of-00001"
    whole = (tmp_path / "c" / name).read_bytes()
    data = prefix.with_name(name).read_bytes()
    copied = set()
    for key, entry in checkpoint.entries.items():
        (part,) = entry.slices
        places = slice(part.offset, part.offset + part.bytes)
        if any(data[places]):
            assert data[places] == whole[places]
            copied.add(key)
    assert copied == {"inside/embeddings", "out/kernel"}
    assert prefix.with_name(name).stat().st_blocks * 512 < LARGE.nbytes
