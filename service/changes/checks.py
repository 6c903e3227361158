"""Checks a request against a version of the model, and makes the change that the log stores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import EXPIRES, ID, Change, Head, vector_array, vector_column
from bundle.errors import FeatureError, VectorRejected
from bundle.features.columns import Column
from bundle.features.input_lengths import default_column, fit_length
from bundle.format.input_lengths import InputLength
from bundle.stores.attributes import AttributeMisfit, array_of_values
from bundle.stores.writer import feature_array
from bundle.tables.id_values import ids_of, integers, known_kind, numbers
from bundle.tables.row_records import KEY, SEQUENCE
from bundle.tables.stored_rows import stored_rows
from runtime.vectors import SEARCHABLE, find_unsearchable
from service.changes.changed_version import ChangedVersion
from service.changes.embedding import missing_inputs
from service.changes.store_changes import ChangedCorpus
from service.config import ServiceSettings
from service.contract.changes import ChangeRequest, Ids
from service.contract.limits import at_most
from service.contract.names import name_list
from service.engine import lookup
from service.engine.execution import Execution
from service.engine.validation import (
    check_names,
    left_out,
    name_hint,
    show_id,
    show_version,
)
from service.errors import FieldViolation, InvalidArgument, NotFound, ServiceError, TooLarge
from service.versions.version import ModelVersion

Vectors = NDArray[np.float32]

_EXPIRY_END_S = 16_725_225_600
"""The year 2500, in Unix seconds: a later time was meant in milliseconds or microseconds."""


def checked_change(
    version: ChangedVersion, request: ChangeRequest, settings: ServiceSettings, now_s: float
) -> Change:
    """Returns the change that the log stores for a request.

    Args:
      version: The version that is changed.
      request: The request.
      settings: The limits.
      now_s: The time, in Unix seconds.

    Raises:
      InvalidArgument: Something of the request does not fit the version; the message names it.
      NotFound: There is no such table, corpus, store, index or feature.
      TooLarge: More is changed than the limits allow.
      BundleError: A candidate's vector cannot be computed.
      NotFinite: A candidate's vector would hold NaN or an infinity.
    """
    at_most(settings, "max_values", request.ids.size, "request")
    if request.kind == "rows":
        return _rows_change(version, request, settings, now_s)

    # Checked here, and not when the log is read: a record in the log is applied by all processes,
    # and nobody could reject it there.
    store, name = _store(version, request)
    ids = _typed_ids(store, request.ids)
    _check_distinct(ids)
    columns = {ID: _id_array(ids)}
    embedded: tuple[str, ...] = ()
    if request.action == "upsert":
        _check_count(store, _owner(store, request), store.store.positions(ids), settings, now_s)
        columns |= _feature_arrays(version, store, request)
        columns |= _attribute_arrays(store, request, with_all=True)
        vectors, embedded = _vectors(version, store, request)
        columns |= {vector_column(index): vector_array(vectors[index]) for index in vectors}
    elif request.action == "attributes":
        positions = store.store.positions(ids)
        _check_count(store, _owner(store, request), positions[positions >= 0], settings, now_s)
        if not request.attributes:
            raise InvalidArgument.of_field("attributes", "empty", "at least one")
        columns |= _attribute_arrays(store, request, with_all=False)
    head = Head(
        kind=request.kind,
        action=request.action,
        target=name,
        version=version.loaded.version,
        embedded=embedded,
        stream=request.stream,
    )
    return _change(head, columns, request, now_s)


def _rows_change(
    version: ChangedVersion, request: ChangeRequest, settings: ServiceSettings, now_s: float
) -> Change:
    """Returns the change of a request for rows; see `checked_change`."""
    name = _table_name(version, request)
    table = version.loaded.manifest.tables[name]
    ids = request.ids
    takes_keys = version.tables.takes_keys(request.feature)
    if not request.feature:
        ids = _integers(ids, "rows")
    elif takes_keys:
        ids = _integers(ids, "keys")
    _check_distinct(ids)
    vectors = _checked_vectors(request.vectors.get(""), ids, table.dim, "vectors")
    try:
        stored = stored_rows(vectors, table.dtype)
        rows = version.tables.rows_of(ids, request.feature)
    except VectorRejected as problem:
        id_text = show_id(ids.tolist()[problem.position])
        value = f"{problem.value} of the vector of id {id_text}"
        field = f"vectors[{problem.position}]"
        raise InvalidArgument.of_field(field, value, problem.expected, "has") from problem
    columns = {}
    new_keys = np.empty(0, np.int64)
    if takes_keys:
        _check_new_keys(version, request.feature, ids[rows < 0])
        rows = version.tables.with_new_rows(name, rows)
        new_keys = ids[rows >= table.rows]
        columns[KEY] = _id_array(ids)
    else:
        _check_rows(version, name, ids, rows)

    # Rows that are changed already need no further memory.
    changed = version.tables.of(name)
    further_count = int(np.count_nonzero(~changed.contains(rows)))
    count = changed.count + further_count
    if further_count and count > settings.max_changed_rows:
        message = (
            f"table {name!r} would have {count} changed rows; at most {settings.max_changed_rows} "
            "are accepted (max_changed_rows); export the model with them"
        )
        expected = f"at most {settings.max_changed_rows} (max_changed_rows)"
        raise TooLarge(message, FieldViolation("table", f"{count} changed rows", expected))

    # Candidates that depend on the rows are embedded anew, and are changed candidates then.
    for corpus, positions in version.dependents(name, rows, new_keys).items():
        store = version.store("candidates", corpus)
        assert store is not None  # noqa: S101 - it has these candidates
        reason = ", whose vectors depend on these rows"
        _check_count(store, f"corpus {corpus!r}", positions, settings, now_s, reason)
    head = Head(
        kind="rows",
        action="upsert",
        target=name,
        version=version.loaded.version,
        stream=request.stream,
    )
    columns |= {ID: _id_array(rows)}
    return replace(_change(head, columns, request, now_s), rows=stored)


def _check_rows(version: ChangedVersion, table: str, ids: Ids, rows: NDArray[np.int64]) -> None:
    """Rejects ids that have no row in a table."""
    size = version.loaded.manifest.tables[table].rows
    is_unknown = (rows < 0) | (rows >= size)
    if not is_unknown.any():
        return
    position = int(is_unknown.argmax())
    id_text = show_id(ids.tolist()[position])
    remedy = "its number of rows is fixed: export it with more"
    keyed = version.tables.key_feature(table)
    if keyed:
        remedy = f"to give a new key a row, name a feature whose ids are keys, such as {keyed!r}"
    table_text = f"table {table!r} of {size} rows"
    field = f"ids[{position}]"
    message = f"{field}: id {id_text} has no row in {table_text}; {remedy}"
    raise InvalidArgument(message, FieldViolation(field, id_text, f"a row of {table_text}"))


def _check_new_keys(version: ChangedVersion, feature: str, keys: NDArray[np.int64]) -> None:
    """Rejects keys that cannot get a row of the table that a feature reads."""
    name, entry = lookup.embedded_feature(version.loaded, feature)
    expected = f"a new key of table {entry.table!r} from 0 to 2^63 - 1"
    for key in keys[keys < 0].tolist()[:1]:
        raise InvalidArgument.of_field("ids", key, expected, "holds")
    if entry.padding is not None and entry.padding in keys.tolist():
        value = f"id {entry.padding}, which fills lists up in feature {name!r}"
        raise InvalidArgument.of_field("ids", value, "an id of which a row is read", "holds")


def _table_name(version: ChangedVersion, request: ChangeRequest) -> str:
    """Returns the name of the table that a request changes."""
    loaded = version.loaded
    tables = loaded.manifest.tables
    name = request.target
    if request.feature:
        _, entry = lookup.embedded_feature(loaded, request.feature)
        if name not in {"", entry.table}:
            value = repr(name[:128])
            message = f"table is {value}; feature {request.feature[:128]!r} reads {entry.table!r}"
            raise InvalidArgument(message, FieldViolation("table", value, repr(entry.table)))
        return entry.table
    if not name and len(tables) == 1:
        (name,) = tables
    if name not in tables:
        raise _not_found(loaded, "table", name, tables)
    return name


def _not_found(loaded: ModelVersion, what: str, name: str, names: Collection[str]) -> ServiceError:
    """Returns the error for a table or store that a version does not have, or that was not named
    although there is a choice.
    """
    where = show_version(loaded)
    field = what.removeprefix("context ")
    if not name and names:
        return left_out(loaded, field, names)
    value = repr(name[:128])
    message = f"{where} has no {what} {value}; {name_hint(name, names, 'has')}"
    if not names:
        message = f"{where} has no {what}"
    return NotFound(message, FieldViolation(field, value, f"a {what} of {where}"))


def _change(head: Head, columns: dict[str, Any], request: ChangeRequest, now_s: float) -> Change:
    """Returns a change with the columns that all kinds have: sequences and expiry."""
    import pyarrow as pa

    count = request.ids.size
    if request.sequences is not None:
        _check_size("sequences", request.sequences.size, count)
        columns[SEQUENCE] = pa.array(request.sequences, pa.int64())
    if request.expires_s is not None:
        _check_expiries(request.expires_s, count)
        columns[EXPIRES] = pa.array(request.expires_s, pa.float64(), from_pandas=True)
    return Change(head, pa.record_batch(columns), now_s, request.offset)


def _check_expiries(expires_s: NDArray[np.float64], count: int) -> None:
    """Rejects times that cannot be meant: 0, or milliseconds. NaN stands for never."""
    _check_size("expires_s", expires_s.size, count)
    is_wrong = (expires_s <= 0) | (expires_s >= _EXPIRY_END_S)
    for position in is_wrong.nonzero()[0][:1].tolist():
        expected = "a time in Unix seconds, after 0 and before the year 2500,"
        value = str(expires_s[position])
        raise InvalidArgument.of_field(f"expires_s[{position}]", value, expected)


def _store(version: ChangedVersion, request: ChangeRequest) -> tuple[ChangedCorpus, str]:
    """Returns the corpus or context store of a request, and its name."""
    loaded = version.loaded
    stores = loaded.contexts
    what = "context store"
    if request.kind == "candidates":
        stores = loaded.corpora
        what = "corpus"
    name = request.target
    if not name and len(stores) == 1:
        (name,) = stores
    store = version.store(request.kind, name)
    if store is None:
        raise _not_found(loaded, what, name, stores)
    return store, name


def _typed_ids(store: ChangedCorpus, ids: Ids) -> Ids:
    """Returns ids as the store holds them."""
    try:
        return ids_of(store.base.entry.id_dtype, "id", ids)
    except FeatureError as problem:
        raise InvalidArgument.of_misfit("ids", problem) from problem


def _integers(ids: Ids, kind: str) -> NDArray[np.int64]:
    """Returns ids that are rows or keys of a table."""
    try:
        return integers("id", ids)
    except FeatureError as problem:
        message = f"ids, which are {kind} of the table: {problem.problem}"
        violation = FieldViolation("ids", problem.value, problem.expected)
        raise InvalidArgument(message, violation) from problem


def _check_distinct(ids: Ids) -> None:
    positions: dict[Any, int] = {}
    for position, key in enumerate(ids.tolist()):
        if key in positions:
            id_text = show_id(key)
            positions_text = f"at {positions[key]} and {position}"
            message = (
                f"ids[{position}]: id {id_text} comes twice, {positions_text}; send each id once"
            )
            violation = FieldViolation(
                f"ids[{position}]", f"{id_text} {positions_text}", "an id that comes once"
            )
            raise InvalidArgument(message, violation)
        positions[key] = position


def _owner(store: ChangedCorpus, request: ChangeRequest) -> str:
    """Returns the corpus or context store of a change, as errors name it."""
    noun = "context store"
    if request.kind == "candidates":
        noun = "corpus"
    return f"{noun} {store.base.name!r}"


def _check_count(
    store: ChangedCorpus,
    owner: str,
    positions: NDArray[np.int64],
    settings: ServiceSettings,
    now_s: float,
    reason: str = "",
) -> None:
    """Rejects a change after which a store would have too many changed candidates.

    Args:
      store: The store.
      owner: Its name, as errors show it.
      positions: The positions of the entries that would be changed; -1: a new one.
      settings: The limit.
      now_s: The time, in Unix seconds.
      reason: Why they would be changed, if the request does not name them.
    """
    # Those behind the bundle's are changed already, and count once however often they change.
    further_count = int(np.count_nonzero(positions < store.store.base_size))
    changed_count = store.unexpired_count(now_s) + further_count
    if further_count and changed_count > settings.max_changed_candidates:
        limit = f"{settings.max_changed_candidates} are accepted (max_changed_candidates)"
        message = (
            f"{owner} would have {changed_count} changed entries{reason}; at "
            f"most {limit}; export the model with them"
        )
        violation = FieldViolation("store", f"{changed_count} changed entries", f"at most {limit}")
        raise TooLarge(message, violation)


def _feature_arrays(
    version: ChangedVersion, store: ChangedCorpus, request: ChangeRequest
) -> dict[str, Any]:
    """Returns the columns of the features, of the lengths that their inputs take."""
    stored_names = store.base.entry.features
    owner = _owner(store, request)
    check_names(request.features, stored_names, "features", "a feature", owner)
    missing = [name for name in stored_names if name not in request.features]
    if missing:
        names = name_list(list(map(repr, missing)))
        expected = f"all features of {owner}"
        raise InvalidArgument.of_field("features", f"no {names}", expected, "has")
    count = request.ids.size
    features = lookup.fit(version.loaded, request.features, count, Execution("change"))
    served = version.publish()
    version.towers.check_features(served, features, count)
    if request.kind == "candidates":
        version.towers.check_rankings(served, store.base.name, features, request.ids)
    types = store.store.types
    columns = {}
    for name in stored_names:
        stored = types[f"feature:{name}"]
        column = features[name]
        width = _width(stored)
        if width is not None:
            default = default_column(name, None, served.manifest.default_of(name))
            fitted = fit_length(name, InputLength(values=width), column, count, default)
            column = fitted.column._replace(offsets=None)
        column = column._replace(values=_stored_values(name, column.values, stored))
        columns[f"feature:{name}"] = feature_array(name, column, count)
        if f"weights:{name}" in types or column.weights is not None:
            weights = Column(np.ones(column.values.size, np.float32), column.offsets)
            if column.weights is not None:
                weights = weights._replace(values=column.weights)
            columns[f"weights:{name}"] = feature_array(name, weights, count)
    return columns


def _width(arrow_type: Any) -> int | None:
    """Returns how many values each entry of a store has in a column; None: any number of them."""
    import pyarrow as pa

    if pa.types.is_large_list(arrow_type):
        return None
    if pa.types.is_fixed_size_list(arrow_type):
        return int(arrow_type.list_size)
    return 1


def _stored_values(name: str, values: NDArray[Any], arrow_type: Any) -> NDArray[Any]:
    """Returns values, which features take, with the type that the store holds.

    Raises:
      FeatureError: A value has none of that type.
    """
    import pyarrow as pa

    stored = getattr(arrow_type, "value_type", arrow_type)
    if pa.types.is_floating(stored):
        return numbers(name, values)
    if pa.types.is_integer(stored):
        # Numbers whose candidates of the bundle are all integers.
        is_whole = values.dtype.kind == "f" and (values == np.trunc(values)).all()
        if is_whole and (np.abs(values) < 2**63).all():
            values = values.astype(np.int64)
        return integers(name, values)
    texts = known_kind(name, values)
    return texts.astype(str).astype(object)


def _attribute_arrays(
    store: ChangedCorpus, request: ChangeRequest, with_all: bool
) -> dict[str, Any]:
    """Returns the columns of the attributes that were sent, or of all attributes of the store,
    which are null where none were sent.
    """
    entry = store.base.entry
    owner = _owner(store, request)
    check_names(request.attributes, entry.attributes, "attributes", "an attribute", owner)
    count = request.ids.size
    columns = {}
    names = [*request.attributes]
    if with_all:
        names = [*entry.attributes]
    for name in names:
        field = f"attributes.{name}"
        values: Sequence[Any] = request.attributes.get(name, [None] * count)
        _check_size(field, len(values), count)
        try:
            columns[f"attribute:{name}"] = array_of_values(entry.attributes[name], values)
        except AttributeMisfit as problem:
            raise InvalidArgument.of_field(
                field, problem.value, problem.expected, "holds"
            ) from problem
    return columns


def _vectors(
    version: ChangedVersion, store: ChangedCorpus, request: ChangeRequest
) -> tuple[dict[str, Vectors], tuple[str, ...]]:
    """Returns the vectors of candidates by index, and the indexes whose tower computed them."""
    owner = f"corpus {store.base.name!r}"
    check_names(request.vectors, store.indexes, "vectors", "an index", owner)
    vectors = {}
    embedded = []
    for name, index in store.indexes.items():
        requested = request.vectors.get(name)
        if requested is not None:
            dim = index.entry.dim
            vectors[name] = _checked_vectors(requested, request.ids, dim, f"vectors.{name}")
            continue
        missing = missing_inputs(version.loaded, store.base.entry, index)
        if missing:
            inputs = name_list(list(map(repr, missing)))
            message = (
                f"vectors of index {name!r} were not sent, and its candidate tower takes {inputs}, "
                "which the corpus does not hold: send the vectors"
            )
            expected = f"the vectors of index {name!r}"
            raise InvalidArgument(message, FieldViolation("vectors", "empty", expected))
        vectors[name] = version.embed(index, request.features, request.ids.size)
        embedded.append(name)
    return vectors, tuple(embedded)


def _checked_vectors(vectors: Vectors | None, ids: Ids, dim: int, field: str) -> Vectors:
    """Returns the vectors of candidates or rows; rejects those that cannot be searched."""
    count = ids.size
    if vectors is None:
        raise InvalidArgument.of_field(field, "empty", f"[{count}, {dim}]")
    if vectors.shape != (count, dim):
        shape = list(vectors.shape)
        raise InvalidArgument.of_field(field, shape, f"[{count}, {dim}]", "has shape")
    unsearchable = find_unsearchable(vectors)
    if unsearchable is not None:
        position, problem = unsearchable
        value = f"{problem} for id {show_id(ids.tolist()[position])}"
        raise InvalidArgument.of_field(f"{field}[{position}]", value, SEARCHABLE, "has")
    return vectors


def _check_size(field: str, size: int, expected: int) -> None:
    if size != expected:
        counts = f"{size} values for {expected} ids"
        raise InvalidArgument.of_field(field, counts, "one value for each id", "has")


def _id_array(ids: Ids) -> Any:
    import pyarrow as pa

    kind = pa.large_string()
    if ids.dtype == np.int64:
        kind = pa.int64()
    return pa.array(ids, kind)
