"""Each part of a bundle is opened, whatever the checksums of its files say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.errors import FormatError
from bundle.format.manifest import Table
from bundle.storage import catalog, files
from bundle.tables.reader import TableReader
from export.errors import VerificationFailed
from export.verify.parts import open_parts, towers_and_parts
from tests.bundles.small import SmallBundle


def test_store_of_contexts_that_has_an_id_twice_is_found(
    write: Callable[..., SmallBundle], root: Path
) -> None:
    write(users=True)
    bundle = root / "movies/1"
    manifest = catalog.read_manifest(bundle)
    assert "contexts users" in list(open_parts(bundle, manifest))

    path = files.locate(bundle, manifest.contexts["users"].file)
    with pa.memory_map(str(path)) as source:
        stored = pa.ipc.open_file(source).read_all()
    twice = pa.concat_tables([stored.slice(0, stored.num_rows - 1), stored.slice(0, 1)])
    path.unlink()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, stored.schema) as writer:
        writer.write_table(twice.combine_chunks())
    with pytest.raises(FormatError, match="comes twice"):
        list(open_parts(bundle, manifest))


GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"


def test_each_part_of_a_bundle_is_opened_in_its_order() -> None:
    manifest = catalog.read_manifest(GOLDEN)
    towers = manifest.towers
    assert list(open_parts(GOLDEN, manifest)) == [
        *(f"table {name}" for name in manifest.tables),
        *(
            f"{label}, {form.kind} {form.precision}"
            for label, entry in towers_and_parts(manifest)
            for form in entry.forms
        ),
        "corpus movies",
        *(f"corpus movies, filter {name}" for name in manifest.corpora["movies"].filters),
        "contexts users",
        "index movies",
    ]
    assert [label for label, _ in towers_and_parts(manifest)] == [
        "tower query",
        "tower candidate",
        "tower ranking",
        *(f"tower ranking, part {part.name}" for part in towers["ranking"].parts),
    ]


def test_tables_that_lie_elsewhere_are_opened_there() -> None:
    manifest = catalog.read_manifest(GOLDEN)
    opened: list[Table] = []

    def open_table(table: Table) -> TableReader:
        opened.append(table)
        return TableReader(GOLDEN, table)

    nothing: dict[str, dict[str, Any]] = {
        kind: {} for kind in ("towers", "corpora", "contexts", "indexes")
    }
    elsewhere = manifest.model_copy(update=nothing)
    opened_parts = list(open_parts(GOLDEN, elsewhere, open_table))
    assert opened_parts == [f"table {name}" for name in manifest.tables]
    assert opened == list(manifest.tables.values())


@pytest.mark.parametrize(("rows", "count"), [(1, 41), (-1, 39)])
def test_index_of_another_number_of_vectors_than_candidates_is_found(
    tmp_path: Path, rows: int, count: int
) -> None:
    bundle = Path(shutil.copytree(GOLDEN, tmp_path / "1"))
    manifest = catalog.read_manifest(bundle)
    index = manifest.indexes["movies"]
    vectors = np.fromfile(bundle / index.vectors, "<f4").reshape(-1, index.dim)
    changed = np.concatenate([vectors, vectors[:1]]) if rows > 0 else vectors[:-1]
    changed.tofile(bundle / index.vectors)
    with pytest.raises(
        VerificationFailed,
        match=rf"index 'indexes/movies/scann' has {count} vectors; 40 were expected",
    ):
        list(open_parts(bundle, manifest))
