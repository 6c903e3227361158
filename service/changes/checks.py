"""Checks a request against a version of the model, and makes of it what the log stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import (
    EXPIRES,
    ID,
    SEQUENCE,
    VECTOR,
    Change,
    Head,
    vector_array,
    vector_column,
)
from bundle.errors import FeatureError, VectorRefused
from bundle.features.columns import Column
from bundle.stores.writer import feature_array
from bundle.tables.changed_rows import rounded
from bundle.tables.id_values import integers, strings
from service.changes.changed_version import ChangedVersion
from service.changes.requests import ChangeRequest, Ids
from service.changes.store_changes import ChangedCorpus
from service.config import ServiceSettings
from service.engine import lookup
from service.engine.execution import Execution
from service.engine.limits import at_most
from service.engine.names import check_names, name_hint, show_id, show_version
from service.errors import InvalidArgument, NotFound, TooLarge
from service.versions.version import ServedIndex

Vectors = NDArray[np.float32]


def checked_change(
    version: ChangedVersion, request: ChangeRequest, settings: ServiceSettings, now_s: float
) -> Change:
    """Returns what the log stores of a request.

    Args:
      version: The version that is changed.
      request: The request.
      settings: The limits.
      now_s: The time, in Unix seconds.

    Raises:
      InvalidArgument: Something of the request does not fit the version; names it.
      NotFound: There is no such table, corpus, store, index or feature.
      TooLarge: More is changed than the limits allow.
      BundleError, NotFinite: A candidate's vector cannot be computed.
    """
    at_most(settings, "max_values", request.ids.size, "the request")
    if request.kind == "rows":
        return _rows_change(version, request, settings, now_s)
    store, name = _store(version, request)
    ids = _ids(store, request.ids)
    _check_distinct(ids)
    columns = {ID: _id_array(ids)}
    embedded: tuple[str, ...] = ()
    if request.action == "upsert":
        _check_count(store, ids.size, settings)
        columns |= _feature_arrays(version, store, request)
        columns |= _attribute_arrays(store, request, with_all=True)
        vectors, embedded = _vectors(version, store, request)
        columns |= {vector_column(index): vector_array(vectors[index]) for index in vectors}
    elif request.action == "attributes":
        _check_count(store, ids.size, settings)
        if not request.attributes:
            raise InvalidArgument("no attributes were sent; at least one was expected")
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
    if request.action != "upsert":
        raise InvalidArgument(f"action is {request.action!r}; rows can be upserted only")
    name = _table(version, request)
    table = version.loaded.manifest.tables[name]
    ids = request.ids
    takes_keys = version.tables.takes_keys(request.feature)
    if not request.feature:
        ids = _integers(ids, "ids, which are rows of the table")
    elif takes_keys:
        ids = _integers(ids, "ids, which are keys of the table")
    _check_distinct(ids)
    vectors = _checked_vectors(request.vectors.get(""), ids.size, table.dim, "vectors")
    try:
        rounded(vectors, table.dtype)
        rows = version.tables.rows_of(ids, request.feature)
    except VectorRefused as problem:
        id_text = show_id(ids.tolist()[problem.position])
        raise InvalidArgument(f"vector of id {id_text}: {problem.problem}") from problem
    keys = np.empty(0, np.int64)
    if takes_keys:
        _check_new_keys(version, request.feature, ids[rows < 0])
        keys = ids[(rows < 0) | (rows >= table.rows)]
    else:
        _check_rows(version, name, ids, rows)
    changed = version.tables.of(name)
    count = changed.count + int(np.count_nonzero(~changed.contains(rows)))
    if count > settings.max_changed_rows:
        raise TooLarge(
            f"table {name!r} would have {count} changed rows; at most {settings.max_changed_rows} "
            "are accepted (max_changed_rows); export the model with them"
        )
    for corpus, positions in version.readers(name, rows, keys).items():
        store = version.store("candidates", corpus)
        assert store is not None  # noqa: S101 - it has these candidates
        # The others are changed already, and are so once, however often they are embedded.
        count = int(np.count_nonzero(positions < store.store.base_size))
        reason = ", whose vectors depend on these rows"
        _check_count(store, count, settings, reason)
    head = Head(
        kind="rows",
        action="upsert",
        target=name,
        version=version.loaded.version,
        feature=request.feature,
        stream=request.stream,
    )
    return _change(head, {ID: _id_array(ids), VECTOR: vector_array(vectors)}, request, now_s)


def _check_rows(version: ChangedVersion, table: str, ids: Ids, rows: NDArray[np.int64]) -> None:
    """Rejects ids that have no row in a table."""
    size = version.loaded.manifest.tables[table].rows
    is_unknown = (rows < 0) | (rows >= size)
    if not is_unknown.any():
        return
    id_text = show_id(ids[is_unknown].tolist()[0])
    remedy = "its number of rows is fixed: export it with more"
    keyed = version.tables.key_feature(table)
    if keyed:
        remedy = f"to give a new key a row, name a feature whose ids are keys, such as {keyed!r}"
    raise InvalidArgument(f"id {id_text} has no row in table {table!r} of {size} rows; {remedy}")


def _check_new_keys(version: ChangedVersion, feature: str, keys: NDArray[np.int64]) -> None:
    """Rejects keys that cannot get a row of the table that a feature reads."""
    name, entry = lookup.embedded_feature(version.loaded, feature)
    for key in keys[keys < 0].tolist()[:1]:
        raise InvalidArgument(
            f"id {key} is negative; a new key of table {entry.table!r} is an integer from 0 to "
            "2^63 - 1"
        )
    if entry.padding is not None and entry.padding in keys.tolist():
        raise InvalidArgument(
            f"id {entry.padding} fills lists up in feature {name!r}, which reads no row for it"
        )


def _table(version: ChangedVersion, request: ChangeRequest) -> str:
    """Returns the name of the table that a request changes."""
    loaded = version.loaded
    tables = loaded.manifest.tables
    name = request.target
    if request.feature:
        _, entry = lookup.embedded_feature(loaded, request.feature)
        if name not in {"", entry.table}:
            raise InvalidArgument(
                f"table is {name[:128]!r}; feature {request.feature[:128]!r} reads {entry.table!r}"
            )
        return entry.table
    if not name and len(tables) == 1:
        (name,) = tables
    if name not in tables:
        hint = name_hint(name, tables, "has")
        raise NotFound(f"{show_version(loaded)} has no table {name[:128]!r}; {hint}")
    return name


def _change(head: Head, columns: dict[str, Any], request: ChangeRequest, now_s: float) -> Change:
    import pyarrow as pa

    count = request.ids.size
    if request.sequences is not None:
        _check_size("sequences", request.sequences.size, count)
        columns[SEQUENCE] = pa.array(request.sequences, pa.int64())
    if request.expires_s is not None:
        if request.kind != "candidates" or request.action != "upsert":
            raise InvalidArgument("expires_s is accepted only with an upsert of candidates")
        _check_size("expires_s", request.expires_s.size, count)
        columns[EXPIRES] = pa.array(request.expires_s, pa.float64(), from_pandas=True)
    return Change(head, pa.record_batch(columns), now_s, request.offset)


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
        hint = name_hint(name, stores, "has")
        raise NotFound(f"{show_version(loaded)} has no {what} {name[:128]!r}; {hint}")
    return store, name


def _ids(store: ChangedCorpus, ids: Ids) -> Ids:
    """Returns ids as the store holds them."""
    try:
        if store.base.entry.id_dtype == "int64":
            return integers("id", ids)
        return strings("id", ids)
    except FeatureError as problem:
        raise InvalidArgument(f"ids: {problem.problem}") from problem


def _integers(ids: Ids, what: str) -> NDArray[np.int64]:
    try:
        return integers("id", ids)
    except FeatureError as problem:
        raise InvalidArgument(f"{what}: {problem.problem}") from problem


def _check_distinct(ids: Ids) -> None:
    positions: dict[Any, int] = {}
    for position, key in enumerate(ids.tolist()):
        if key in positions:
            raise InvalidArgument(
                f"id {show_id(key)} comes twice, at {positions[key]} and {position}; send each id "
                "once"
            )
        positions[key] = position


def _check_count(
    store: ChangedCorpus, count: int, settings: ServiceSettings, reason: str = ""
) -> None:
    """Rejects a change after which a store would have too many changed candidates.

    Args:
      store: The store.
      count: How many would be changed further.
      settings: The limit.
      reason: Why they would, if the request does not name them.
    """
    changed = store.added_count + count
    if changed > settings.max_changed_candidates:
        raise TooLarge(
            f"store {store.base.name!r} would have {changed} changed entries{reason}; at most "
            f"{settings.max_changed_candidates} are accepted (max_changed_candidates); export the "
            "model with them"
        )


def _feature_arrays(
    version: ChangedVersion, store: ChangedCorpus, request: ChangeRequest
) -> dict[str, Any]:
    """Returns the columns of the features, of the lengths that their inputs take."""
    wanted = store.base.entry.features
    where = f"store {store.base.name!r}"
    check_names(request.features, wanted, "feature", where)
    missing = [name for name in wanted if name not in request.features]
    if missing:
        raise InvalidArgument(f"feature {missing[0]!r} was not sent; {where} holds it")
    count = request.ids.size
    features = lookup.fit(version.loaded, request.features, count, Execution("change"))
    types = store.store.types
    columns = {}
    for name in wanted:
        column = _typed(name, features[name], types[f"feature:{name}"])
        columns[f"feature:{name}"] = feature_array(name, column, count)
        if column.weights is not None:
            weights = Column(column.weights, column.offsets)
            columns[f"weights:{name}"] = feature_array(name, weights, count)
    return columns


def _typed(name: str, column: Column, kind: Any) -> Column:
    """Returns a feature with values of the type that the store holds.

    Raises:
      InvalidArgument: They are of another type.
    """
    import pyarrow as pa

    stored = getattr(kind, "value_type", kind)
    values = column.values
    expected = "strings"
    kinds = "O"
    dtype: np.dtype[Any] = np.dtype(object)
    if pa.types.is_floating(stored):
        expected = "numbers"
        kinds = "iuf"
        dtype = np.dtype(np.float32)
    elif pa.types.is_integer(stored):
        expected = "integers"
        kinds = "iu"
        dtype = np.dtype(np.int64)
    if not values.size:
        return column._replace(values=np.empty(0, dtype))
    if values.dtype.kind not in kinds:
        value_text = show_id(values.tolist()[0])
        raise InvalidArgument(f"features.{name} holds {value_text}; {expected} were expected")
    return column._replace(values=values.astype(dtype, copy=False))


def _attribute_arrays(
    store: ChangedCorpus, request: ChangeRequest, with_all: bool
) -> dict[str, Any]:
    """Returns the columns of the attributes that were sent, or of all, null where none were."""
    import pyarrow as pa

    entry = store.base.entry
    check_names(request.attributes, entry.attributes, "attribute", f"store {store.base.name!r}")
    types = {
        "int64": pa.int64(),
        "double": pa.float64(),
        "string": pa.large_string(),
        "bool": pa.bool_(),
        "list<string>": pa.large_list(pa.large_string()),
    }
    count = request.ids.size
    columns = {}
    names = [*request.attributes]
    if with_all:
        names = [*entry.attributes]
    for name in names:
        kind = entry.attributes[name]
        values: Sequence[Any] = request.attributes.get(name, [None] * count)
        _check_size(f"attributes.{name}", len(values), count)
        try:
            columns[f"attribute:{name}"] = pa.array(values, types[kind])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
            raise InvalidArgument(
                f"attributes.{name} holds {_misfit(values, types[kind])}; {kind} or null was "
                "expected"
            ) from problem
    return columns


def _misfit(values: Sequence[Any], kind: Any) -> str:
    """Returns the first value that is not of an Arrow type, as errors show it."""
    import pyarrow as pa

    for value in values:
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return repr(value)[:80]
    return "values of several types"


def _vectors(
    version: ChangedVersion, store: ChangedCorpus, request: ChangeRequest
) -> tuple[dict[str, Vectors], tuple[str, ...]]:
    """Returns the vectors of candidates by index, and the indexes whose tower computed them."""
    check_names(request.vectors, store.indexes, "index", f"corpus {store.base.name!r}")
    vectors = {}
    embedded = []
    for name, index in store.indexes.items():
        requested = request.vectors.get(name)
        if requested is not None:
            where = f"vectors of index {name!r}"
            vectors[name] = _checked_vectors(requested, request.ids.size, index.entry.dim, where)
            continue
        _check_embeddable(version, store, name, index)
        vectors[name] = version.embed(index, request.features, request.ids.size)
        embedded.append(name)
    return vectors, tuple(embedded)


def _check_embeddable(
    version: ChangedVersion, store: ChangedCorpus, name: str, index: ServedIndex
) -> None:
    manifest = version.loaded.manifest
    tower = version.loaded.towers[index.entry.candidate_tower]
    for needed in tower.inputs:
        if needed not in store.base.entry.features and manifest.default_of(needed) is None:
            raise InvalidArgument(
                f"vectors of index {name!r} were not sent, and its candidate tower takes "
                f"{needed!r}, which the corpus does not hold: send the vectors"
            )


def _checked_vectors(vectors: Vectors | None, count: int, dim: int, where: str) -> Vectors:
    if vectors is None:
        raise InvalidArgument(f"{where} were not sent; [{count}, {dim}] was expected")
    if vectors.shape != (count, dim):
        raise InvalidArgument(
            f"{where} have shape {list(vectors.shape)}; [{count}, {dim}] was expected"
        )
    is_finite = np.isfinite(vectors)
    if not is_finite.all():
        position = int(np.argmin(is_finite.all(axis=1)))
        raise InvalidArgument(f"{where}: vector {position} holds NaN or an infinity")
    return vectors


def _check_size(what: str, size: int, expected: int) -> None:
    if size != expected:
        raise InvalidArgument(
            f"{what} has {size} values; {expected} were expected, one for each id"
        )


def _id_array(ids: Ids) -> Any:
    import pyarrow as pa

    kind = pa.large_string()
    if ids.dtype == np.int64:
        kind = pa.int64()
    return pa.array(ids, kind)
