"""Writes a bundle part by part, as an export does, and commits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import paths
from bundle.format.manifest import (
    CandidateList,
    Corpus,
    Feature,
    Index,
    KeyIndex,
    Manifest,
    Provenance,
    Stage,
    Table,
    TableCheck,
    Tower,
    Verification,
    Vocabulary,
)
from bundle.storage.staging import Staging
from bundle.stores.lists import write_list
from bundle.tables.key_index import KeyIndexWriter
from bundle.tables.vocabularies import write_vocabulary
from tests.bundles import stores

DIRECTORIES = ("vocabularies", "keys", "corpora", "contexts", "towers", "indexes", "lists")
"""The directories whose files the manifest lists with their digests."""


class BundleWriter:
    """A version of a model while a test writes it.

    Each `add_` method writes files and notes their manifest entry. A test that has made an entry by
    itself puts it into the dict of its kind.

        with BundleWriter(root, "movies", 2) as writer:
            writer.tables["users"] = write_table(writer.directory, "users", rows, "float32", [20])
            writer.add_vocabulary("movies", ids)
            manifest = writer.commit({"user": EmbeddedFeature(...)})

    Attributes:
      directory: The staging directory, where files of the bundle are written.
    """

    def __init__(self, root: Path, model: str, version: int) -> None:
        self._staging = Staging(root, model, version)
        self._model = model
        self._version = version
        self.directory = self._staging.directory
        self.tables: dict[str, Table] = {}
        self.vocabularies: dict[str, Vocabulary] = {}
        self.keys: dict[str, KeyIndex] = {}
        self.corpora: dict[str, Corpus] = {}
        self.contexts: dict[str, Corpus] = {}
        self.towers: dict[str, Tower] = {}
        self.indexes: dict[str, Index] = {}
        self.lists: dict[str, CandidateList] = {}
        self.stages: dict[str, Stage] = {}
        self.unread_inputs: tuple[str, ...] = ()

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._staging.close()

    def add_vocabulary(self, name: str, values: NDArray[Any]) -> None:
        """Writes the values of a vocabulary, int64 or object holding str, in the order of rows."""
        file = paths.vocabulary(name)
        write_vocabulary(self.directory / file, values)
        dtype: Literal["int64", "string"] = "string" if values.dtype == object else "int64"
        self.vocabularies[name] = Vocabulary(file=file, size=len(values), dtype=dtype)

    def add_keys(self, name: str, keys: NDArray[np.int64]) -> None:
        """Writes an index of keys, which are in the order of rows."""
        file = paths.key_index(name)
        with KeyIndexWriter(self.directory / file) as writer:
            writer.append(keys)
            size = writer.finish()
        self.keys[name] = KeyIndex(file=file, size=size)

    def add_corpus(
        self,
        name: str,
        ids: NDArray[Any],
        features: Mapping[str, Column],
        attributes: Mapping[str, pa.Array],
        filters: Sequence[str],
    ) -> None:
        """Writes a corpus. Requests can filter by the attributes in `filters`."""
        self.corpora[name] = stores.write_corpus(
            self.directory, name, ids, features, attributes, filters
        )

    def add_contexts(self, name: str, ids: NDArray[Any], features: Mapping[str, Column]) -> None:
        """Writes a store of contexts."""
        self.contexts[name] = stores.write_contexts(self.directory, name, ids, features)

    def add_list(
        self, name: str, corpus: str, segments: Mapping[str, NDArray[Any]], by: str | None = None
    ) -> None:
        """Writes the candidates of each segment; strangers have the segment ""."""
        file = paths.candidate_list(name)
        ids = np.concatenate([*segments.values()])
        names = np.repeat([*segments], [len(movies) for movies in segments.values()])
        write_list(self.directory / file, pa.array(ids), pa.array(names, pa.large_string()))
        self.lists[name] = CandidateList(file=file, corpus=corpus, size=len(ids), by=by)

    def commit(self, features: Mapping[str, Feature]) -> tuple[Path, Manifest]:
        """Publishes what was written, with a verification that compared all rows.

        Returns:
          The directory of the bundle, and its manifest.
        """
        checks = {
            name: TableCheck(rows_compared=table.rows, rows=table.rows)
            for name, table in self.tables.items()
        }
        manifest = Manifest(
            model=self._model,
            version=self._version,
            created="2026-01-01T00:00:00Z",
            provenance=Provenance(
                checkpoint=f"ckpt-{self._version}",
                step=self._version,
                fingerprint="crc32c:00000000",
                model_code="linear.py:build",
                exporter="0.1.0",
                libraries={},
            ),
            tables=self.tables,
            vocabularies=self.vocabularies,
            keys=self.keys,
            features=dict(features),
            unread_inputs=self.unread_inputs,
            towers=self.towers,
            corpora=self.corpora,
            contexts=self.contexts,
            indexes=self.indexes,
            lists=self.lists,
            stages=self.stages,
            verification=Verification(tables=checks, examples=1, tolerance="1e-5 + 1e-5 |y|"),
            files=tuple(
                file for directory in DIRECTORIES for file in self._staging.digests(directory)
            ),
        )
        return self._staging.commit(manifest), manifest
