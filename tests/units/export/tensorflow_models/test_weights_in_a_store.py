"""Which variables of a checkpoint in a store are copied for the reference model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Duplicate, SlotSpec, Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Listing, Storage
from export.front_end.specs import ModelSpec, TableFacts
from export.tensorflow_models.model.dense_copy import local_prefix
from object_store.remote_path import RemotePath
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.traced_models import one_table_recipe
from tests.units.object_store.memory_stores import uploaded

SMALL = np.arange(1, 61, dtype=np.float32).reshape(20, 3)
LARGE = np.broadcast_to(np.float32(1), (30_000, 1024))  # in no memory
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


def test_copy_of_moving_averages_in_a_store_is_read_in_the_places_of_their_variables(
    tmp_path: Path,
) -> None:
    variables = {
        "out/bias": SMALL[6],
        "out/kernel": SMALL[:3],
        "out/kernel/average": SMALL[3:6],
        "user/embeddings": SMALL,
    }
    write_bundle(tmp_path / "c/ckpt-1", variables, files=2)
    store = uploaded(tmp_path / "c", RemotePath(f"counted://{tmp_path.name}"))
    opened = open_checkpoint(store / "ckpt-1")
    averages = {"out/kernel": "out/kernel/average"}
    listing = Listing(opened.fingerprint, opened.entries, Storage(averages=averages))
    checkpoint = Checkpoint(opened.prefix, listing, opened.name)
    inventory = replace(
        recognize(checkpoint, Statements({"user": "user/embeddings"})),
        # As where the averages are those of an optimizer.
        slots=(SlotSpec("average", "out/kernel/average", "out/kernel", 36),),
    )
    model = ModelSpec({"user": TableFacts("user", "user", 20, 3)}, {}, {})

    for _ in range(2):  # a run that resumes finds what the last one wrote
        prefix = local_prefix(
            checkpoint, inventory, model, one_table_recipe("build"), tmp_path / "copy"
        )
        read = open_checkpoint(prefix, complete=False)
        np.testing.assert_array_equal(read.read_all("out/kernel"), SMALL[3:6])
        np.testing.assert_array_equal(read.read_all("out/bias"), SMALL[6])
