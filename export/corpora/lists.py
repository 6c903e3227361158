"""Writes the lists of candidates of a recipe, such as the popular ones of each country, to files of
the bundle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bundle.format import manifest, paths
from bundle.format.features import DenseFeature, Feature, input_facts, readers_of
from bundle.storage import arrow
from bundle.stores.lists import write_list
from bundle.stores.reader import MappedColumns
from export.corpora.reading import CorpusReader
from export.errors import DestinationError, NotConvertible, UsageError
from export.recipe.schema import CorpusSection, ListSection


@dataclass(frozen=True)
class WrittenList:
    """A list that was written.

    Attributes:
      entry: The entry in the manifest.
      deleted: The number of candidates that were left out, because changes delete them.
    """

    entry: manifest.CandidateList
    deleted: int

    def notes(self, name: str) -> list[str]:
        """Returns the lines of the report on the list."""
        if not self.deleted:
            return []
        return [f"lists.{name}: {self.deleted} candidates are left out: changes delete them"]


def columns_of(section: ListSection) -> CorpusSection:
    """Returns the columns of a list's files, in the form of a corpus."""
    attributes = tuple(filter(None, [section.segment]))
    return CorpusSection(
        file=section.file, format=section.format, id=section.id, attributes=attributes
    )


def check_segment_input(name: str, section: ListSection, features: Mapping[str, Feature]) -> None:
    """Checks the input whose value is the segment of a context.

    Args:
      name: The name of the list.
      section: The list in the recipe.
      features: Every feature of the model.

    Raises:
      UsageError: No tower reads the input, or it is an input of candidates, or holds no ids.
    """
    if section.by is None:
        return
    readers = readers_of(features).get(section.by, ())
    if not readers:
        raise UsageError(
            f"lists.{name}.by names {section.by!r}, which no tower reads; an input that requests "
            "send was expected"
        )
    feature = features[readers[0]]
    if input_facts(section.by, feature).role != "context":
        raise UsageError(
            f"lists.{name}.by names {section.by!r}, an input of candidates; one of contexts was "
            "expected"
        )
    if isinstance(feature, DenseFeature):
        raise UsageError(
            f"lists.{name}.by names {section.by!r}, which holds numbers; an input of ids was "
            "expected"
        )


def write_candidate_list(
    base: Path,
    name: str,
    section: ListSection,
    rows: CorpusReader,
    corpus: manifest.Corpus,
    deleted: Collection[Any],
) -> WrittenList:
    """Writes a list of candidates.

    Args:
      base: The directory of the bundle that is being written; holds the store of the corpus.
      name: The name of the list.
      section: The list in the recipe.
      rows: The reader of the rows of the list.
      corpus: The manifest entry of its corpus.
      deleted: Ids of candidates that changes delete: these may be missing.

    Raises:
      UsageError: A file is unreadable, or lacks a column.
      NotConvertible: The corpus lacks a candidate, an id comes twice in a segment, or no row is of
        the default segment; names it.
      DestinationError: The file cannot be written.
    """
    ids, segments = _read(rows, section)
    kind = arrow.kind_of(ids.type)
    if kind != corpus.id_dtype:
        raise NotConvertible(
            f"lists.{name}: its ids are {kind}, those of corpus {section.corpus!r} are "
            f"{corpus.id_dtype}"
        )
    # An id that the corpus lacks is a mistake, unless a change has deleted the candidate.
    unknown = _unknown(base, corpus, ids)
    is_deleted = pc.is_in(unknown, value_set=pa.array(list(deleted), ids.type))
    missing = unknown.filter(pc.invert(is_deleted))
    if len(missing):
        raise NotConvertible(
            f"lists.{name}: {len(missing)} of {len(ids)} ids are not in corpus {section.corpus!r}, "
            f"such as {missing[0].as_py()!r}; leave them out of the list, or add them to the corpus"
        )
    is_known = pc.invert(pc.is_in(ids, value_set=unknown))
    deleted_count = len(ids) - pc.sum(is_known).as_py()
    ids = ids.filter(is_known)
    segments = segments.filter(is_known)
    _check_rows(name, section, ids, segments)
    file = paths.candidate_list(name)
    try:
        write_list(base / file, ids, segments)
    except OSError as problem:
        raise DestinationError(
            f"list {file!r} cannot be written: {problem.strerror or problem}; free some space, "
            "then run again"
        ) from problem
    entry = manifest.CandidateList(
        file=file, corpus=section.corpus, size=len(ids), by=section.by, default=section.default
    )
    return WrittenList(entry, deleted_count)


def _read(rows: CorpusReader, section: ListSection) -> tuple[Any, Any]:
    """Returns the ids and segments of all rows; a row without a segment has ""."""
    ids = []
    segments = []
    for _, batch_ids, _, attributes in rows.batches():
        batch = pa.array(batch_ids)
        if not pa.types.is_integer(batch.type):
            # Files may hold strings of both widths, and only arrays of one type can be joined.
            batch = batch.cast(pa.large_string())
        ids.append(batch)
        if section.segment is None:
            segments.append(pa.array([""] * len(batch), pa.large_string()))
        else:
            column = attributes[section.segment].cast(pa.large_string())
            segments.append(pc.fill_null(column, ""))
    return pa.concat_arrays(ids), pa.concat_arrays(segments)


def _unknown(base: Path, corpus: manifest.Corpus, ids: Any) -> Any:
    """Returns the ids that a corpus lacks, each once. The corpus is read in slices."""
    unknown = ids.unique()
    for ids_of_corpus in MappedColumns(base / corpus.file, corpus).id_slices():
        is_known = pc.is_in(unknown, value_set=ids_of_corpus.cast(unknown.type))
        unknown = unknown.filter(pc.invert(is_known))
    return unknown


def _check_rows(name: str, section: ListSection, ids: Any, segments: Any) -> None:
    """Checks that ids are distinct in a segment, and that the default segment is not empty."""
    pairs = pa.table({"id": ids, "segment": segments})
    counts = pairs.group_by(["id", "segment"]).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1))
    if repeated.num_rows:
        row = repeated.slice(0, 1).to_pylist()[0]
        raise NotConvertible(
            f"lists.{name}: id {row['id']!r} comes {row['count_all']} times in segment "
            f"{row['segment']!r}; once was expected"
        )
    default = pa.array([section.default])
    has_default = pc.is_in(default, value_set=segments.unique().cast(pa.string()))[0].as_py()
    if not has_default:
        raise NotConvertible(
            f"lists.{name}: no row is of segment {section.default!r}, which contexts have whose "
            "value has no list of its own; name one of the segments as default, or leave the "
            "segment of some rows empty"
        )
