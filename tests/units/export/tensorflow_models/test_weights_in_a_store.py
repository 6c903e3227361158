"""Which variables of a checkpoint in a store are copied for the reference model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Duplicate, RejectedTable, SlotSpec, Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Listing, Storage
from export.front_end.specs import ModelSpec, TableFacts
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.placeholders import FIRST_VALUE_BYTES
from export.tensorflow_models.model.dense_copy import local_prefix
from object_store.remote_path import RemotePath
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.traced_models import one_table_recipe
from tests.units.object_store.memory_stores import uploaded

ROWS = FIRST_VALUE_BYTES // 4096 + 1
SMALL = np.arange(60, dtype=np.float32).reshape(20, 3)
LARGE = np.ones((ROWS, 1024), np.float32)
VARIABLES = {
    "user/embeddings": SMALL,
    "user/embeddings/Adagrad": SMALL + 1,
    "user again": SMALL + 1,
    "inside/embeddings": SMALL + 2,
    "inside again": SMALL + 3,
    "large/embeddings": LARGE,
    "large again": LARGE,
    "rejected": LARGE,
    "rejected and small": SMALL + 4,
    "out/kernel": SMALL[1:3],
}
DUPLICATES = (
    Duplicate("user again", "user/embeddings", 0),
    Duplicate("inside again", "inside/embeddings", 0),
    Duplicate("large again", "large/embeddings", 0),
)
REJECTED = (
    RejectedTable("a", "rejected", ""),
    RejectedTable("b", "rejected and small", ""),
    RejectedTable("c", "not there", ""),
)
NEEDED = {"inside/embeddings", "inside again", "rejected and small", "out/kernel"}


def with_limit(inline_bytes_max: int) -> ExportJob:
    job = one_table_recipe("build")
    code = job.code.model_copy(update={"inline_bytes_max": inline_bytes_max})
    return job.model_copy(update={"code": code})


@pytest.mark.parametrize(
    ("inline_bytes_max", "copied"),
    [
        (LARGE.nbytes - 1, NEEDED),
        (LARGE.nbytes, {*NEEDED, "large/embeddings", "large again", "rejected"}),
    ],
)
def test_copy_of_a_checkpoint_in_a_store_lacks_what_the_reference_never_restores(
    tmp_path: Path, inline_bytes_max: int, copied: set[str]
) -> None:
    """Tables that left the towers, their copies, and what is too large for a tower."""
    write_bundle(tmp_path / "c/ckpt-1", VARIABLES)
    store = uploaded(tmp_path / "c", RemotePath(f"counted://{tmp_path.name}"))
    checkpoint = open_checkpoint(store / "ckpt-1")
    inventory = recognize(checkpoint, Statements({"user": "user/embeddings"}))
    inventory = replace(inventory, duplicates=DUPLICATES, rejected=REJECTED)
    model = ModelSpec({"user": TableFacts("user", "user", 20, 3)}, {}, {})

    prefix = local_prefix(
        checkpoint, inventory, model, with_limit(inline_bytes_max), tmp_path / "copy"
    )

    whole = (tmp_path / "c/ckpt-1.data-00000-of-00001").read_bytes()
    data = prefix.with_name("ckpt-1.data-00000-of-00001").read_bytes()
    actual = set()
    for key, entry in checkpoint.entries.items():
        (part,) = entry.slices
        byte_range = slice(part.offset, part.offset + part.bytes)
        if any(data[byte_range]):
            assert data[byte_range] == whole[byte_range]
            actual.add(key)
    assert actual == copied
    stored = prefix.with_name("ckpt-1.data-00000-of-00001").stat().st_blocks * 512
    assert ("large/embeddings" in copied) == (stored > FIRST_VALUE_BYTES)


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
        prefix = local_prefix(checkpoint, inventory, model, with_limit(0), tmp_path / "copy")
        read = open_checkpoint(prefix, complete=False)
        np.testing.assert_array_equal(read.read_all("out/kernel"), SMALL[3:6])
        np.testing.assert_array_equal(read.read_all("out/bias"), SMALL[6])
