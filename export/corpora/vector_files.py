"""Writes the candidates of an index for other engines: ids, vectors and attributes of a published
bundle, as Parquet or as the JSON lines that Vertex AI Vector Search ingests.

Source: Vertex AI Vector Search, "Input data format and structure" (the fields of a record, file
names and their number) and "Filter vector matches" (restricts).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.errors import BundleError, NotCommitted
from bundle.format.indexes import Index
from bundle.format.manifest import Manifest
from bundle.shown_values import shown_names
from bundle.storage import arrow, files
from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_file
from bundle.stores.reader import MappedColumns
from export.errors import UsageError, VerificationFailed
from runtime.vectors import VectorFile

_BLOCK_ROWS = 16_384
"""The maximum number of candidates in memory at a time."""


class _Block(NamedTuple):
    """Some candidates in the order of the corpus: a `pyarrow.Array` of ids, [n, dim] float32
    vectors, and a `pyarrow.Array` by attribute.
    """

    ids: Any
    vectors: NDArray[np.float32]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class IndexedCandidates:
    """The candidates of an index, whose files are whole.

    Attributes:
      name: The name of the index.
      index: Its manifest entry.
      attributes: The attributes to write, in the order of the manifest.
      columns: The corpus.
      vectors: The vectors, in the order of the corpus.
    """

    name: str
    index: Index
    attributes: tuple[str, ...]
    columns: MappedColumns
    vectors: VectorFile

    @property
    def types(self) -> dict[str, Any]:
        """The `pyarrow.DataType` of each attribute."""
        types = self.columns.types
        return {name: types[f"attribute:{name}"] for name in self.attributes}

    def blocks(self) -> Iterator[_Block]:
        """Yields all candidates, a bounded number at a time.

        Raises:
          VerificationFailed: A file cannot be read any more.
        """
        rows = min(_BLOCK_ROWS, self.vectors.block_rows)
        columns = ["id", *(f"attribute:{name}" for name in self.attributes)]
        for start in range(0, self.columns.size, rows):
            positions = np.arange(start, min(start + rows, self.columns.size))
            try:
                vectors = self.vectors[start : start + rows]
            except OSError as problem:
                raise VerificationFailed(f"{self.vectors.path}: {problem.strerror}") from problem
            arrays = self.columns.arrays(positions, columns)
            attributes = {name: arrays[f"attribute:{name}"] for name in self.attributes}
            yield _Block(arrays["id"], vectors, attributes)
            self.columns.release()


def open_candidates(
    bundle: Path, index: str | None = None, attributes: Sequence[str] = ()
) -> IndexedCandidates:
    """Opens the candidates of an index, and compares their files with the checksums.

    Args:
      bundle: The directory of the bundle.
      index: The name of the index; None: the bundle's only one.
      attributes: The attributes to write; (): all.

    Raises:
      UsageError: The directory holds no bundle, or the bundle has no such index or attribute.
      VerificationFailed: A file of the bundle is damaged.
    """
    try:
        manifest = read_manifest(bundle)
    except NotCommitted as problem:
        raise UsageError(f"{problem}; give a bundle's directory: ROOT/MODEL/VERSION") from problem
    except BundleError as problem:
        raise VerificationFailed(str(problem)) from problem
    name = _chosen_index(manifest, index)
    entry = manifest.indexes[name]
    corpus = manifest.corpora[entry.corpus]
    absent = [attribute for attribute in attributes if attribute not in corpus.attributes]
    if absent:
        raise UsageError(
            f"--attributes names {absent[0]!r}, which corpus {entry.corpus!r} does not have; it "
            f"has {shown_names(corpus.attributes) or 'none'}"
        )
    chosen = tuple(name for name in corpus.attributes if not attributes or name in attributes)

    try:
        for file in manifest.files:
            if file.path in (corpus.file, entry.vectors):
                check_file(bundle, file)
        path = files.locate(bundle, corpus.file)
        # What was written by somebody else is read as well.
        arrow.open_mapped(path)
        columns = MappedColumns(path, corpus)
        vectors = VectorFile(files.locate(bundle, entry.vectors), entry.dim)
    except BundleError as problem:
        raise VerificationFailed(str(problem)) from problem
    except OSError as problem:
        raise VerificationFailed(f"{problem.filename}: {problem.strerror}") from problem
    if len(vectors) != columns.size:
        raise VerificationFailed(
            f"index {name!r} has {len(vectors)} vectors, and its corpus {columns.size} candidates"
        )
    return IndexedCandidates(name, entry, chosen, columns, vectors)


def _chosen_index(manifest: Manifest, index: str | None) -> str:
    names = list(manifest.indexes)
    if not names:
        raise UsageError(
            "the bundle has no index, so no vectors of candidates: add a section 'indexes' to the "
            "recipe, and export it again"
        )
    if index is None and len(names) > 1:
        raise UsageError(f"the bundle has the indexes {shown_names(names)}; name one by --index")
    if index is not None and index not in names:
        raise UsageError(
            f"--index {index!r}: the bundle has no such index; it has {shown_names(names)}"
        )
    return index or names[0]


def write_parquet(candidates: IndexedCandidates, stream: BinaryIO) -> None:
    """Writes candidates as a Parquet file with the columns `id` (int64 or string), `vector` (a list
    of float32 of fixed size) and `attribute:NAME` for each attribute.
    """
    import pyarrow as pa
    from pyarrow import parquet

    dim = candidates.index.dim
    vector_type = pa.list_(pa.float32(), dim)
    fields = {"id": candidates.columns.types["id"], "vector": vector_type}
    fields |= {f"attribute:{name}": kind for name, kind in candidates.types.items()}
    with parquet.ParquetWriter(stream, pa.schema(fields)) as writer:
        for block in candidates.blocks():
            vectors = pa.FixedSizeListArray.from_arrays(block.vectors.ravel(), dim)
            columns = [block.ids, vectors, *block.attributes.values()]
            writer.write_table(pa.table(columns, schema=writer.schema))


def write_vertex(
    candidates: IndexedCandidates, stream: BinaryIO, crowding: str | None = None
) -> None:
    """Writes candidates as JSON lines of `id` (text), `embedding`, `restricts` (texts and bools),
    `numeric_restricts` (numbers) and, with a crowding attribute, `crowding_tag`. What a candidate
    has no value of, or NaN or an infinity, is left out.

    Args:
      candidates: The candidates.
      stream: Takes the lines.
      crowding: The attribute whose value is the tag.

    Raises:
      UsageError: The attribute of crowding is none that is written, or holds lists.
    """
    kinds = {name: arrow.kind_of(kind) for name, kind in candidates.types.items()}
    if crowding is not None and kinds.get(crowding, "list").startswith("list"):
        raise UsageError(
            f"--crowding {crowding!r}: an attribute with one value of each candidate was expected, "
            "which is among those that are written"
        )
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    for block in candidates.blocks():
        ids = block.ids.to_pylist()
        values = {name: array.to_pylist() for name, array in block.attributes.items()}
        for row, vector in enumerate(block.vectors):
            own_values = {name: column[row] for name, column in values.items()}
            record = {"id": str(ids[row]), "embedding": vector, **_restricts(own_values, kinds)}
            if crowding is not None and own_values[crowding] is not None:
                (record["crowding_tag"],) = _tokens(own_values[crowding])
            stream.write(orjson.dumps(record, option=options))


def _restricts(values: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a record by which searches filter, from the values and the types of
    attributes.
    """
    restricts = []
    numbers = []
    for name, value in values.items():
        number_field = _NUMBER_FIELDS.get(kinds[name])
        if number_field is None:
            tokens = _tokens(value)
            if tokens:
                restricts.append({"namespace": name, "allow": tokens})
        elif value is not None and math.isfinite(value):
            numbers.append({"namespace": name, number_field: value})
    fields = {"restricts": restricts, "numeric_restricts": numbers}
    return {field: entries for field, entries in fields.items() if entries}


_NUMBER_FIELDS = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), "value_int"),
    "float": "value_float",
    "double": "value_double",
}
"""The field of a numeric restrict, by the type of an attribute."""


def _tokens(value: Any) -> list[str]:
    """Returns the distinct tokens of an attribute's value; [] of none."""
    if value is None:
        return []
    if not isinstance(value, list):
        value = [value]
    # As JSON writes a bool.
    texts = [str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in value]
    return list(dict.fromkeys(texts))
