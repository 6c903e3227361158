"""Features: their columns -> the arrays that towers take; contexts by id; and the Lookup call.
Counts unknown ids.

Features of contexts by id that a request does not send are taken from the bundle's context store.
An id that the store does not hold is counted, and the context has the defaults; only where a
feature has no default is the request rejected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import NotSent, RowUnavailable, UnknownRejected, rejection_of_unknown
from bundle.features import diagnosis
from bundle.features.columns import Column, OutputBlock, checked_offsets
from bundle.features.diagnosis import NonFiniteRow
from bundle.features.sources import Fetched
from bundle.format.manifest import DenseFeature, EmbeddedFeature, Manifest, inputs_of
from bundle.tables.id_values import distinct
from bundle.tables.offsets import offsets_of
from service.config import ServiceSettings
from service.contract.forms import IdLists
from service.contract.limits import at_most
from service.contract.merging import NotAlike
from service.contract.messages import (
    Columns,
    Ids,
    LookupRequest,
    LookupResult,
    NotFoundRule,
    Offsets,
    RetrievalRequest,
)
from service.contract.names import LISTED_MAX, name_list
from service.engine.execution import Execution, NotTogether
from service.engine.validation import (
    check_queries,
    check_rows,
    choose_context_store,
    left_out,
    name_hint,
    show_id,
    show_version,
)
from service.errors import FieldViolation, InvalidArgument, NotFound, RowNotFinite
from service.versions.version import LoadedStore, ModelVersion

Rows = NDArray[np.int64]


class NoSuchCandidate(InvalidArgument):
    """A candidate id is not in the corpus; another version of the model may have it."""


def candidate_positions(
    corpus: LoadedStore, ids: Ids, not_found: NotFoundRule, field: str, offsets: Offsets | None
) -> NDArray[np.int64]:
    """Returns the positions of candidates; -1 for one that is not in the corpus, if such ids are
    skipped.

    Args:
      corpus: The candidates.
      ids: The ids of those that are wanted.
      not_found: What becomes of ids that are not in the corpus.
      field: The field of the request that holds the ids.
      offsets: Query or context i has ids[offsets[i]:offsets[i + 1]]; None: each id is a query.

    Raises:
      NoSuchCandidate: A candidate is not in the corpus, and that is an error; names both.
    """
    positions = corpus.store.positions(ids, field)
    if not_found is NotFoundRule.ERROR and (positions < 0).any():
        position = int((positions < 0).argmax())
        id_text = show_id(ids[position])
        if offsets is not None and offsets.size == 2:
            # The ids of several are sent one after the other, or in lists of their own.
            field = f"{field}[{position}]"
        corpus_text = f"corpus {corpus.name!r} of {corpus.entry.size} candidates"
        message = (
            f"{field}: candidate {id_text} is not in {corpus_text}; set not_found to skip to leave "
            "such ids out"
        )
        raise NoSuchCandidate(message, FieldViolation(field, id_text, f"an id in {corpus_text}"))
    return positions


def not_found_ids(ids: Ids, existing: NDArray[np.int64], offsets: Offsets) -> IdLists:
    """Returns the ids of each query or context that do not exist, in their order; one that was sent
    twice is listed twice.

    Args:
      ids: [m] of all queries or contexts.
      existing: Which of them exist, by their positions among all, ascending.
      offsets: Query or context i has ids[offsets[i]:offsets[i + 1]].
    """
    is_missing = np.ones(ids.size, bool)
    is_missing[existing] = False
    return IdLists(ids[is_missing], np.flatnonzero(is_missing).searchsorted(offsets))


def count_examples(manifest: Manifest, columns: Columns) -> int:
    """Returns how many examples packed columns hold: by offsets, else by the values of a single or
    dense feature, else by those of an input that takes a fixed number of them.

    Other bags and sequences without offsets do not show it: they hold one example if nothing else
    is sent. So does an input whose lists are padded or cut.
    """
    for name, column in columns.items():
        if column.offsets is not None:
            return max(0, int(column.offsets.size) - 1)
        feature = manifest.features[manifest.inputs[name][0]]
        if isinstance(feature, DenseFeature):
            if feature.take == "values":
                return ceil_div(int(column.values.size), math.prod(feature.shape))
        elif feature.one_each:
            return int(column.values.size)
    for name, column in columns.items():
        # Offsets and single values show no number of examples; an input of a fixed length may.
        length = manifest.length_of(name)
        if length is None or length.pad is not None or length.keep is not None:
            continue
        if column.values.size and column.values.size % length.values == 0:
            return int(column.values.size) // length.values
    return 1


class ExampleCounts(NamedTuple):
    """How many examples a request holds, as far as it is known before the request is checked: what
    merging reads from a version.
    """

    version: ModelVersion

    def count_examples(self, columns: Columns) -> int:
        """See `Counter`."""
        manifest = self.version.manifest
        if not columns.keys() <= manifest.inputs.keys():
            raise NotAlike
        return count_examples(manifest, columns)

    def dim(self, request: RetrievalRequest) -> int:
        """See `Counter`."""
        indexes = self.version.indexes
        index = indexes.get(request.index)
        if index is None and not request.index and len(indexes) == 1:
            (index,) = indexes.values()
        if index is None:
            raise NotAlike
        return int(index.entry.dim)


def count_queries(
    model_version: ModelVersion,
    columns: Columns,
    ids: Ids | None,
    settings: ServiceSettings,
    execution: Execution,
) -> int:
    """Returns how many queries or contexts a batch has, at most `max_queries` of each request: by
    ids, else by its columns.
    """
    if ids is None:
        n = count_examples(model_version.manifest, columns)
    else:
        n = int(ids.size)
    check_queries(execution.largest(n), settings)
    return n


def complete(
    model_version: ModelVersion,
    inputs: Collection[str],
    columns: Columns,
    ids: Ids | None,
    n: int,
    execution: Execution,
) -> Columns:
    """Returns the columns that were sent, and beside them what the store holds of the other inputs,
    all of the lengths that the inputs take.

    Args:
      model_version: The model version.
      inputs: The names of the inputs that are needed.
      columns: The columns that were sent.
      ids: The ids of the contexts; None: nothing is taken from a store.
      n: The number of contexts.
      execution: The batch of the request.

    Raises:
      InvalidArgument: There is no store, more than one, or not one id for each context; or a
        context is not in the store and one of its inputs has no default: names it.
      FeatureError: An example has another number of values than its input takes.
    """
    if ids is None:
        return fit(model_version, columns, n, execution)
    # Without this, a context would silently get the features of another one.
    if ids.size != n:
        value = f"{ids.size} ids for {n} contexts"
        raise InvalidArgument.of_field("context_ids", value, "one per context", "has")
    # What the request sends wins over the store.
    missing_inputs = [name for name in inputs if name not in columns]
    store = choose_context_store(model_version, missing_inputs)
    if store is None:
        return fit(model_version, columns, n, execution)
    names = [name for name in missing_inputs if name in store.entry.features]
    execution.begin("lookup")
    positions = store.store.positions(ids, "context_ids")
    is_known = positions >= 0
    # Only known contexts: position -1 would read the last one.
    stored = store.store.features(positions[is_known], names)
    if not is_known.all():
        missing = int(np.count_nonzero(~is_known))
        execution.count("missing_contexts", missing, model_version.model, store.name)
        defaults = {name: model_version.manifest.default_of(name) for name in names}
        required = [repr(name) for name, default in defaults.items() if default is None]
        if required:
            # The first such context suffices: a message that lists all could be as long as the
            # request.
            id_text = show_id(ids[~is_known][0])
            store_text = f"context store {store.name!r} of {store.entry.size} contexts"
            message = (
                f"context_ids: context {id_text} is not in {store_text}, and its features without "
                f"a default are {name_list(required)}; send these"
            )
            raise InvalidArgument(
                message, FieldViolation("context_ids", id_text, f"an id in {store_text}")
            )
        stored = {
            name: _with_default(name, stored[name], default, is_known)
            for name, default in defaults.items()
        }
    return fit(model_version, {**columns, **stored}, n, execution)


def name_all_not_sent(
    problem: NotSent,
    model_version: ModelVersion,
    **fields: tuple[Iterable[str], Collection[str]],
) -> None:
    """Names all inputs that a request lacks, where what is computed names the first of them.

    Args:
      problem: The error that names the first.
      model_version: The model version.
      fields: By the field of the request that would hold them, the inputs that are computed with,
        and those that were sent or are stored.

    Raises:
      InvalidArgument: Several inputs without a default were not sent.
    """
    paths = [
        f"{field}.{name}"
        for field, (inputs, known) in fields.items()
        for name in inputs
        if name not in known and model_version.manifest.default_of(name) is None
    ]
    if len(paths) < 2:
        return
    message = (
        f"{name_list(paths)}: no values were sent, and the features have no defaults; a value "
        "for each example was expected"
    )
    violations = [
        FieldViolation(path, "no value", "a value for each example") for path in paths[:LISTED_MAX]
    ]
    raise InvalidArgument(message, *violations) from problem


def fit(model_version: ModelVersion, columns: Columns, n: int, execution: Execution) -> Columns:
    """Checks the lengths of the lists of n examples; pads and cuts those of which the bundle says
    how, and counts them.

    Raises:
      FeatureError: An example has another number of values than its input takes.
    """
    lengths = model_version.reader.lengths
    if not lengths.entries:
        return columns
    fitted = lengths.fit(columns, n)
    for name, count in fitted.cut.items():
        execution.count("cut_lists", count, model_version.model, name)
    for name, count in fitted.padded.items():
        execution.count("padded_lists", count, model_version.model, name)
    return fitted.columns


def _with_default(name: str, stored: Column, default: Any, is_known: NDArray[np.bool_]) -> Column:
    """Returns the column of all contexts: what is stored of the known ones, the default between
    them for the others.
    """
    weight = np.ones(1, np.float32)
    if isinstance(default, dict):
        weight = np.asarray(default["weights"], np.float32)
        default = default["ids"]
    default = np.asarray(default).reshape(-1)
    unknown = int(np.count_nonzero(~is_known))
    # The default of a context stands where the stored values of the contexts before it end.
    offsets = checked_offsets(name, stored, is_known.size - unknown)
    insert_positions = offsets[np.cumsum(is_known)[~is_known]].repeat(default.size)
    lengths = np.full(is_known.size, default.size)
    lengths[is_known] = np.diff(offsets)
    values = np.insert(stored.values, insert_positions, np.tile(default, unknown))
    weights = stored.weights
    if weights is not None:
        weights = np.insert(weights, insert_positions, np.resize(weight, insert_positions.size))
    return Column(values, offsets_of(lengths), weights)


async def fetch(
    model_version: ModelVersion,
    groups: Sequence[tuple[Sequence[OutputBlock], Columns, int]],
    execution: Execution,
) -> Fetched:
    """Fetches the remote rows that calls of `write` read, in one call of each shard; to be called
    in a phase, for a version that has remote rows.

    Args:
      model_version: The model version.
      groups: The blocks, columns and n of each call.
      execution: The batch of the request.

    Raises:
      FeatureError: See `write`.
    """
    wanted = dict[str, list[Rows]]()
    for blocks, columns, n in groups:
        names = [name for block in blocks for name in block.names]
        for layout, rows in model_version.reader.remote_rows(names, columns, n).items():
            wanted.setdefault(layout, []).append(rows)
    # Contexts and candidates may read the same row: it is fetched once.
    distinct_rows = {layout: distinct(np.concatenate(rows)) for layout, rows in wanted.items()}
    return await _fetch_rows(model_version, distinct_rows, execution)


def write(
    model_version: ModelVersion,
    blocks: Sequence[OutputBlock],
    columns: Columns,
    n: int,
    execution: Execution,
    fetched: Fetched | None = None,
) -> None:
    """Looks features up, each once, into the arrays of `blocks`; to be called in a phase.

    Args:
      model_version: The model version.
      blocks: The arrays and their features.
      columns: Columns by input; an input without a column takes its default.
      n: The number of examples in every column.
      execution: The batch of the request.
      fetched: The rows that `fetch` returned; None: no rows are remote.

    Raises:
      FeatureError: A column does not fit its feature, or is missing without a default; names the
        input.
    """
    for name, count in model_version.reader.write(blocks, columns, n, fetched).items():
        execution.count("oov_ids", count, model_version.model, name)
    execution.count_looked_up(model_version.model, [block.names for block in blocks], n)


async def rows_not_finite(
    model_version: ModelVersion,
    blocks: Sequence[OutputBlock],
    columns: Columns,
    n: int,
    execution: Execution,
) -> list[NonFiniteRow]:
    """Returns the rows with NaN or an infinity that a call of `write` read, and counts them; to be
    called once a result was not finite.

    Arguments and errors are those of `write`.
    """
    names = [name for block in blocks for name in block.names]
    fetched = None
    if model_version.shards is not None:
        fetched = await fetch(model_version, [(blocks, columns, n)], execution)
    nonfinite_rows = diagnosis.rows_not_finite(model_version.reader, names, columns, n, fetched)
    for row in nonfinite_rows:
        execution.count("non_finite_rows", 1, model_version.model, row.table)
    return nonfinite_rows


async def check_rows_finite(
    model_version: ModelVersion,
    blocks: Sequence[OutputBlock],
    columns: Columns,
    n: int,
    execution: Execution,
) -> None:
    """Raises RowNotFinite if a call of `write` read a row with NaN or an infinity; see
    `rows_not_finite`.
    """
    nonfinite_rows = await rows_not_finite(model_version, blocks, columns, n, execution)
    if nonfinite_rows:
        raise RowNotFinite(nonfinite_rows[0].table, nonfinite_rows[0].id)


async def _fetch_rows(
    model_version: ModelVersion, wanted: Mapping[str, Rows], execution: Execution
) -> Fetched:
    """Fetches remote rows within the deadline; counts those that are lost.

    Raises:
      NotTogether: Some are lost, and the batch has several requests.
    """
    if model_version.shards is None or not wanted:
        return {}
    # A batch of these requests and others may have fetched them: no shard is called twice (ADR 54).
    fetched = execution.fetched_before
    if fetched is None or not _holds(fetched, wanted):
        fetched = await model_version.shards.rows(wanted, execution.left_s)
        for layout in fetched.values():
            for table, lost in layout.lost_by_table.items():
                execution.count("lost_rows", lost, model_version.model, table)
    for name, rows in wanted.items():
        execution.rows_fetched += rows.size
        execution.rows_lost += int(np.count_nonzero(fetched[name].is_lost(rows)))
    if execution.rows_lost and execution.request_count > 1:
        raise NotTogether(fetched)
    return fetched


def _holds(fetched: Fetched, wanted: Mapping[str, Rows]) -> bool:
    """Returns whether all wanted rows were fetched, or are known to be lost."""
    for name, rows in wanted.items():
        if name not in fetched or not np.isin(rows, fetched[name].rows).all():
            return False
    return True


async def look_up(
    model_version: ModelVersion,
    request: LookupRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> LookupResult:
    """Reads the table rows of ids by one feature's id rule.

    Raises:
      NotFound: There is no such feature.
      InvalidArgument: An id alone has no row of the feature's table, or it has no table.
      FeatureError: A value is no id of the feature, or is unknown, the feature rejects those, and
        the request does not skip them.
      RowUnavailable: The row of an id is lost, and the feature rejects unknown ids.
      RowNotFinite: The row of an id holds NaN or an infinity.
    """
    name, feature = _embedded_feature(model_version, request.feature)
    (read,) = inputs_of(name, feature)
    n = int(request.ids.values.size)
    at_most(settings, "max_values", execution.largest(n), "request")
    table = model_version.manifest.tables[feature.table]
    check_rows(execution.largest(n), table.dim, "ids", settings)
    execution.begin("lookup")
    rows, _ = model_version.reader.rows(name, {read: Column(request.ids.values)}, n)
    is_read = rows >= 0
    execution.count_looked_up(model_version.model, [(name,)], n)
    execution.count("oov_ids", n - int(np.count_nonzero(is_read)), model_version.model, name)
    # A request that skips unknown ids gets zeros for them, whatever the rule of the feature.
    skips_unknown = request.not_found is NotFoundRule.SKIP
    if feature.unknown.rule == "refuse" and not skips_unknown and not is_read.all():
        unknown = str(request.ids.values[~is_read][0])[:128]
        raise UnknownRejected(
            name,
            f"id {unknown!r}",
            "an id in the table, or not_found set to skip to get zeros",
            f"is not in its table, {rejection_of_unknown(read)}",
        )
    not_found = None
    if skips_unknown:
        not_found = IdLists(request.ids.values[~is_read], offsets_of(~is_read))
    if feature.unknown.row is not None:
        rows = np.where(is_read, rows, feature.unknown.row)
    vectors, lost = await _vectors(model_version, feature.table, rows, execution)
    if feature.unknown.rule == "refuse" and lost.any():
        raise RowUnavailable(name, request.ids.values[lost][0])
    is_read &= ~lost
    lost_or_none = None
    if lost.any():
        lost_or_none = lost
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        count = int(np.count_nonzero(~is_finite))
        execution.count("non_finite_rows", count, model_version.model, feature.table)
        raise RowNotFinite(feature.table, request.ids.values[~is_finite][0])
    execution.count_examples(n)
    if not_found is not None:
        execution.count("not_found_ids", not_found.ids.size, model_version.model, execution.call)
    return LookupResult(
        model_version.model,
        model_version.version,
        feature.table,
        vectors,
        is_read,
        lost_or_none,
        not_found,
    )


async def _vectors(
    model_version: ModelVersion, name: str, rows: Rows, execution: Execution
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Reads rows of a table here or on shards.

    Returns:
      The rows, zeros for negative and lost ones; and which are lost.
    """
    shards = model_version.shards
    if shards is None or name in model_version.tables:
        return model_version.tables[name].take(rows), np.zeros(rows.size, bool)
    remote = shards.tables[name]
    # Rows of one layout are numbered across its tables on the shards; -1 stays -1.
    rows = np.where(rows < 0, rows, rows + remote.first)
    layout = remote.among.name
    wanted = {layout: distinct(rows[rows >= 0])}
    fetched = (await _fetch_rows(model_version, wanted, execution))[layout]
    return fetched.take(rows), fetched.is_lost(rows)


def _embedded_feature(model_version: ModelVersion, name: str) -> tuple[str, EmbeddedFeature]:
    """Returns the feature of this name, or the first that reads the input of this name."""
    manifest = model_version.manifest
    if name not in manifest.features and name in manifest.inputs:
        name = manifest.inputs[name][0]
    feature = manifest.features.get(name)
    if not name:
        raise left_out(model_version, "feature", manifest.features)
    if feature is None:
        hint = name_hint(name, manifest.features, "has")
        message = f"{show_version(model_version)} has no feature {name[:128]!r}; {hint}"
        violation = FieldViolation("feature", repr(name[:128]), "a feature with a table")
        raise NotFound(message, violation)
    if not isinstance(feature, EmbeddedFeature):
        problem = "is dense: it has no table to look up in"
    elif feature.indicator is not None:
        problem = "is an indicator: it has no table to look up in"
    elif feature.split:
        problem = "reads texts: each of their words has a row"
    elif feature.place is not None:
        problem = "reads one of several values of its input: a single id does not identify it"
    elif feature.joint is not None:
        problem = "crosses several inputs: a single id has no row of its table"
    else:
        return name, feature
    violation = FieldViolation("feature", repr(name), "a feature of which each id has a row")
    raise InvalidArgument(f"feature {name!r} {problem}", violation)
