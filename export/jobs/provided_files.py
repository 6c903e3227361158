"""The steps that convert what the user provides beside the checkpoint: vocabularies, corpora,
contexts, lists of candidates, and requests for the warm-up.

They come first: a mistake in a file that was written by hand is reported before the first table is
copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bundle.features.columns import Column
from bundle.format import manifest, paths
from bundle.storage import arrow
from export.corpora import candidates, indexes, lists
from export.corpora.changes import StoreChanges, fold
from export.corpora.files import locate_corpus
from export.corpora.reading import CorpusReader
from export.errors import UsageError
from export.front_end.specs import FeatureSpec
from export.id_graphs.limits import limits_of
from export.jobs.bundle_context import BundleContext
from export.jobs.warm_up import WarmUpWriter
from export.model_code.values import named_vocabularies
from export.recipe.schema import CorpusSection
from export.steps import Step
from export.tables.vocabularies import write_model_vocabulary, write_vocabulary
from export.verify.examples import Examples, chosen_columns


def write_vocabularies(context: BundleContext) -> dict[str, manifest.Vocabulary]:
    """Writes the vocabularies of the recipe and of the model.

    Raises:
      UsageError: A vocabulary has keys without a row in the table of a feature.
    """
    prepared = context.prepared
    run = context.staged.run
    read_by_rules = {
        table.vocabulary
        for feature in prepared.entries.values()
        if isinstance(feature, manifest.EmbeddedFeature)
        for table in manifest.lookup_tables_of(feature.ids)
    }
    # A model that looks up its keys by itself brings them; then only the model's code reads the
    # recipe's file.
    read_by_code = named_vocabularies(context.job) - read_by_rules
    entries: dict[str, manifest.Vocabulary] = {}
    for name, section in context.job.vocabularies.items():
        if name in read_by_code:
            continue
        file = paths.vocabulary(name)
        source = prepared.base / section.file
        size = run(Step(file), write_vocabulary, name, source, section.dtype)
        entries[name] = manifest.Vocabulary(file=file, size=size, dtype=section.dtype)

    for name, keys in prepared.traced.spec.vocabularies.items():
        file = paths.vocabulary(name)
        size = run(Step(file), write_model_vocabulary, name, keys)
        dtype = "string" if isinstance(keys[0], str) else "int64"
        entries[name] = manifest.Vocabulary(file=file, size=size, dtype=dtype)

    for name, feature in prepared.entries.items():
        if isinstance(feature, manifest.EmbeddedFeature):
            _check_reach(context, name, feature, entries)
    return entries


def _check_reach(
    context: BundleContext,
    name: str,
    feature: manifest.EmbeddedFeature,
    vocabularies: Mapping[str, manifest.Vocabulary],
) -> None:
    """Rejects a vocabulary whose last keys have no row in the table of a feature."""
    if not isinstance(feature.ids, manifest.GraphIds) or feature.joint or feature.split:
        return
    model = context.prepared.traced.spec
    spec = model.features[name]
    is_stated = isinstance(spec, FeatureSpec) and not spec.has_rule
    if not is_stated and any("Select" in node.op for node in feature.ids.nodes):
        # A condition of the model may replace the rows behind the table.
        return
    tables = feature.ids.tables
    sizes = [vocabularies[table.vocabulary].size for table in tables]
    last_row = limits_of(feature.ids, sizes).high
    row_count = feature.indicator or model.tables[feature.table].rows
    for table, size in zip(tables, sizes, strict=True):
        ends_with_vocabulary = last_row == table.first_value + size - 1
        if ends_with_vocabulary and last_row >= row_count:
            raise UsageError(
                f"features.{name}.ids: vocabulary {table.vocabulary!r} reaches row {last_row}, "
                f"and table {feature.table!r} has {row_count} rows: either the vocabulary is "
                "not the one of training, or the table was too short there, so that the last "
                f"{last_row + 1 - row_count} keys have no row (a table needs one for each key, "
                "and those for other keys): leave them out of the vocabulary, or train a "
                "larger table"
            )


def write_corpora(
    context: BundleContext, moved: Callable[[int], None]
) -> dict[str, manifest.Corpus]:
    """Writes the corpora with their filters.

    Args:
      context: The bundle while it is made.
      moved: Takes the number of rows that were written since its last call.

    Raises:
      UsageError: A row or the section of an index is invalid.
    """
    entries = {}
    for name, section in context.job.corpora.items():
        store = _run_store(context, "corpora", name, section, moved)
        filters = {}
        # An attribute that the recipe names twice has one index.
        for number, attribute in enumerate(dict.fromkeys(section.filters)):
            filters[attribute] = context.staged.run(
                Step(paths.attribute_index(name, number)),
                candidates.write_filter,
                name,
                number,
                store,
                attribute,
            )
        entries[name] = store.model_copy(update={"filters": filters})
    for name, index in context.job.indexes.items():
        # The index itself is built much later; its mistakes are reported before copies.
        indexes.choose(index, name, entries[index.corpus].size)
    return entries


def write_contexts(
    context: BundleContext, moved: Callable[[int], None]
) -> dict[str, manifest.Corpus]:
    """Writes the stores of contexts; see `write_corpora`."""
    return {
        name: _run_store(context, "contexts", name, section, moved)
        for name, section in context.job.contexts.items()
    }


def _run_store(
    context: BundleContext,
    kind: str,
    name: str,
    section: CorpusSection,
    moved: Callable[[int], None],
) -> manifest.Corpus:
    """Runs the step of a corpus, or of a store of contexts."""
    files = locate_corpus(context.prepared.base, name, section, kind)
    corpus = CorpusReader(files, f"{kind}.{name}", section, context.prepared.entries)
    # A store without changes is not written again when others are changed.
    changes = StoreChanges()
    changes_file = ""
    if context.changes is not None:
        changes = context.changes.of(kind, name)
        changes_file = context.changes.path.name
    store_paths = {"corpora": paths.corpus_store, "contexts": paths.context_store}
    file = store_paths[kind](name)
    entry = context.staged.run(
        Step(file), _write_store, file, kind, name, corpus, changes, changes_file, moved=moved
    )
    context.notes.extend(candidates.notes_of_lengths(f"{kind}.{name}", entry))
    if context.changes is not None:
        table, _ = arrow.open_trusted(context.directory / entry.file)
        types = {column.name: column.type for column in table.schema}
        context.notes.extend(context.changes.notes_of(kind, name, types))
    return entry


def _write_store(
    base: Path,
    file: str,
    kind: str,
    name: str,
    corpus: CorpusReader,
    changes: StoreChanges,
    changes_file: str,
    moved: Callable[[int], None],
) -> manifest.Corpus:
    """Writes a corpus or a store of contexts, with the changes of its service."""
    entry = candidates.write_store(base, file, corpus, moved, searched=kind == "corpora")
    return fold(base, entry, changes, f"{kind}.{name}", changes_file)


def write_lists(
    context: BundleContext, corpora: Mapping[str, manifest.Corpus]
) -> dict[str, manifest.CandidateList]:
    """Writes the lists of candidates, without those that changes deleted.

    Args:
      context: The bundle while it is made.
      corpora: The corpora that the lists refer to, written.
    """
    entries = {}
    for name, section in context.job.lists.items():
        lists.check_segment_input(name, section, context.prepared.entries)
        columns = lists.columns_of(section)
        files = locate_corpus(context.prepared.base, name, columns, "lists")
        deleted_ids: set[Any] = set()
        if context.changes is not None:
            deleted_ids = context.changes.deleted(section.corpus)
        written = context.staged.run(
            Step(paths.candidate_list(name)),
            lists.write_candidate_list,
            name,
            section,
            CorpusReader(files, f"lists.{name}", columns, {}),
            candidates.store_of(corpora[section.corpus]),
            deleted_ids,
        )
        context.notes.extend(written.notes(name))
        entries[name] = written.entry
    return entries


def write_warm_up(context: BundleContext, examples: Examples) -> manifest.WarmUpRequests | None:
    """Writes the requests for the warm-up; returns None if there are none.

    Args:
      context: The bundle while it is made.
      examples: The examples of the recipe.
    """
    prepared = context.prepared
    source = prepared.warm_up_requests
    count = min(context.job.warm_up.examples, examples.n)
    if source is None and not count:
        return None
    file = paths.WARM_UP_REQUESTS
    step = Step(file)
    writer = WarmUpWriter(
        context.job, prepared.traced.spec, prepared.entries, prepared.unread_inputs
    )
    if source is not None:
        size = context.staged.run(step, _copy_requests, file, writer, source)
        requests = f"{size} requests of {source.name}"
    else:
        columns = chosen_columns(examples.columns, np.arange(count), examples.n)
        size = context.staged.run(step, _write_examples, file, writer, columns, count)
        requests = f"the first {count} of verify.examples with each tower"
    context.notes.append(
        f"a service computes {requests} before it serves the bundle, which contains them"
    )
    return manifest.WarmUpRequests(file=file, size=size)


def _copy_requests(base: Path, file: str, writer: WarmUpWriter, source: Path) -> int:
    return writer.write(source, base / file)


def _write_examples(
    base: Path, file: str, writer: WarmUpWriter, columns: Mapping[str, Column], n: int
) -> int:
    return writer.write_examples(columns, n, base / file)
