"""Opens every part of a bundle, as a service would, and calls it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bundle.features.reader import open_features
from bundle.format.indexes import Codes
from bundle.format.manifest import Index, Manifest, Table, Tower, TowerPart
from bundle.storage import files
from bundle.stores.attribute_index import check_attribute_index
from bundle.stores.reader import check_store
from bundle.tables.reader import TableReader
from export.bounds import ABSOLUTE, ANOTHER_ORDER
from export.corpora.indexes import index_steps
from export.corpora.recall import sample_rows
from export.errors import VerificationFailed
from export.graphs.loading import load_tensorflow
from export.report_text import partitions_text
from runtime.engines import open_engine
from runtime.exact import ExactIndex
from runtime.partitions import load_index, partition_rows
from runtime.towers import open_form
from runtime.vectors import VectorFile

VECTORS_COMPARED = 256
"""The number of vectors of each partition that are compared with an index."""
SAME_SHARE_MIN = 0.95
"""Share of compared vectors that an index must hold at their positions.

It is 1 on the machine that built the index; another processor may round a vector to another code.
Of distinct vectors in another order, at most 0.15 had the same code by chance, and 0.46 with the
coarsest parameters (docs/adr/0040-indexes-are-checked-by-their-codes.md).
"""
QUERIES = 64
"""The number of an index's own vectors that it is searched for."""


def towers_and_parts(manifest: Manifest) -> Iterator[tuple[str, Tower | TowerPart]]:
    """Yields the towers of a bundle and their parts, each with its name in messages."""
    for name, tower in manifest.towers.items():
        yield f"tower {name}", tower
        for part in tower.all_parts:
            yield f"tower {name}, part {part.name}", part


def open_parts(
    bundle: Path,
    manifest: Manifest,
    open_table: Callable[[Table], TableReader] | None = None,
) -> Iterator[str]:
    """Opens each part of a bundle as a service would, but for the index of a corpus' ids, which may
    be large.

    Args:
      bundle: The bundle's directory.
      manifest: The bundle's manifest.
      open_table: Opens a table that may not lie in `bundle`.

    Yields:
      The name of each part that opened, for the report.
    """
    remote_tables = {}
    if open_table is not None:
        remote_tables = {name: open_table(table) for name, table in manifest.tables.items()}
    features = open_features(bundle, manifest, remote=remote_tables)
    for name, table in features.tables.items():
        # The first and the last row, so that each end of the table is read.
        table.gather(np.array([0, table.rows - 1], np.int64))
        yield f"table {name}"
    features.close()
    for label, entry in towers_and_parts(manifest):
        for form in entry.forms:
            if form.kind == "saved_model":
                # This sets the variables that keep TensorFlow on CPUs. The runtime, which opens
                # the SavedModel, would import TensorFlow without them.
                load_tensorflow()
            open_form(bundle, entry, form)
            yield f"{label}, {form.kind} {form.precision}"
    for kind, stores in (("corpus", manifest.corpora), ("contexts", manifest.contexts)):
        for name, corpus in stores.items():
            check_store(files.locate(bundle, corpus.file), corpus)
            yield f"{kind} {name}"
            for attribute in corpus.filters:
                check_attribute_index(bundle, corpus, attribute)
                yield f"{kind} {name}, filter {attribute}"
    for name, index in manifest.indexes.items():
        _check_index(bundle, manifest, index)
        yield f"index {name}{partitions_text(index.partitions)}"


def _check_index(bundle: Path, manifest: Manifest, index: Index) -> None:
    """Checks that an index was built from its vectors, in their order, and finds something.

    A tree need not find what exact search finds: how much it finds is its recall, which depends on
    the queries. So vectors are looked up where the index stores them, not searched for.
    """
    size = manifest.corpora[index.corpus].size
    path = files.locate(bundle, index.vectors)
    vectors = VectorFile(path, index.dim)
    if len(vectors) != size:
        raise VerificationFailed(
            f"index {index.directory!r} has {len(vectors)} vectors; {size} were expected"
        )

    directories = [bundle / directory for directory in index.directories]
    loaded = load_index(index.engine, directories, index.distance, vectors.mapped)
    engine = open_engine(index.engine)
    ranges = partition_rows(size, len(directories))
    for directory, rows in zip(directories, ranges, strict=True):
        partition_vectors = VectorFile(path, index.dim, rows)
        positions = sample_rows(len(partition_vectors), VECTORS_COMPARED)
        same = engine.match_stored(
            directory, partition_vectors, positions, index.distance, index.kind
        )
        if same.mean() < SAME_SHARE_MIN:
            raise VerificationFailed(
                f"index {directory.relative_to(bundle).as_posix()!r} does not hold "
                f"{np.count_nonzero(~same)} of {same.size} vectors compared at their positions: it "
                "was built from other vectors, or in another order; export the index again",
                steps=index_steps(index),
            )

    if index.codes is not None:
        _check_codes(bundle, index, index.codes, vectors)

    queries = vectors[sample_rows(size, QUERIES)]
    positions, scores = loaded.search(queries, 1)
    if index.kind == "brute_force":
        # Scores are compared, not positions: equal vectors may stand for each other.
        _, best_scores = ExactIndex(vectors, index.distance).search(queries, 1)
        is_right = np.allclose(scores, best_scores, rtol=ANOTHER_ORDER, atol=ABSOLUTE)
    else:
        is_right = bool((positions >= 0).any())
    if not is_right:
        raise VerificationFailed(
            f"index {index.directory!r} does not find what is nearest to its own vectors; export "
            "the index again",
            steps=index_steps(index),
        )


def _check_codes(bundle: Path, index: Index, codes: Codes, vectors: VectorFile) -> None:
    """Checks that codes are those of an index's vectors, by encoding some again."""
    # Imported here, because it loads faiss, which only an index with codes needs.
    from runtime.codes import VectorCodes

    stored = VectorCodes.load(
        files.locate(bundle, codes.file),
        files.locate(bundle, codes.codebook),
        len(vectors),
        index.dim,
        index.distance,
    )
    positions = sample_rows(len(vectors), VECTORS_COMPARED)
    encoded = stored.book.encode(vectors[positions])
    same = (stored.codes[positions] == encoded).all(axis=1)
    if same.mean() < SAME_SHARE_MIN:
        raise VerificationFailed(
            f"codes {codes.file!r} do not hold {np.count_nonzero(~same)} of {same.size} vectors "
            "compared at their positions: they were made of other vectors, or in another order; "
            "export the index again",
            steps=index_steps(index),
        )
