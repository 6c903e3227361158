"""Checks a request against a version of the model, and makes what the changes file stores of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bundle.changes.states import contents_of
from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.features.input_lengths import default_column, fit_length
from bundle.format.input_lengths import InputLength
from bundle.stores.attributes import AttributeMisfit, array_of_values
from bundle.stores.batches import ATTRIBUTE
from bundle.stores.writer import feature_array
from bundle.tables.id_values import ids_of, integers, known_kind, numbers
from runtime.vectors import SEARCHABLE, find_unsearchable
from service.changes.changed_version import ChangedVersion
from service.changes.embedding import embedded, missing_inputs
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


@dataclass(frozen=True, eq=False)
class CheckedChange:
    """A change of m candidates or contexts that fits a version.

    Attributes:
      request: The request.
      store: The name of the corpus or the context store.
      version: The number of the version.
      ids: The ids as the store has them, [m].
      contents: Of an upsert: the content of each state, [m].
      attributes: Of a change of attributes: the content of each attribute's state, [m] by name.
      is_sent: Whether vectors were sent.
    """

    request: ChangeRequest
    store: str
    version: int
    ids: Ids
    contents: Sequence[str] = ()
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_sent: bool = False


def checked_change(
    version: ChangedVersion, request: ChangeRequest, settings: ServiceSettings, now_s: float
) -> CheckedChange:
    """Returns what the changes file stores of a request.

    Args:
      version: The version that is changed.
      request: The request.
      settings: The limits.
      now_s: The time, in Unix seconds.

    Raises:
      InvalidArgument: Something of the request does not fit the version; the message names it.
      NotFound: There is no such corpus, store, index or feature.
      TooLarge: More is changed than the limits allow.
      BundleError: A candidate's vector cannot be computed.
      NotFinite: A candidate's vector would hold NaN or an infinity.
    """
    at_most(settings, "max_values", request.ids.size, "request")

    # Checked here, and not when the file is read: a state in the file is applied by all processes,
    # and nobody could reject it there.
    store, name = _store(version, request)
    ids = _typed_ids(store, request.ids)
    _check_distinct(ids)
    if request.sequences is not None:
        _check_size("sequences", request.sequences.size, ids.size)
    if request.expires_s is not None:
        _check_expiries(request.expires_s, ids.size)
    change = CheckedChange(request, name, version.loaded.version, ids)
    if request.action == "upsert":
        _check_count(store, _owner(store, request), store.store.positions(ids), settings, now_s)
        columns = _feature_arrays(version, store, request)
        columns |= _attribute_arrays(store, request, with_all=True)
        vectors = _vectors(version, store, request)
        return replace(
            change,
            contents=contents_of(columns, vectors, ids.size),
            is_sent=not vectors.keys().isdisjoint(request.vectors),
        )
    if request.action == "attributes":
        positions = store.store.positions(ids)
        _check_count(store, _owner(store, request), positions[positions >= 0], settings, now_s)
        if not request.attributes:
            raise InvalidArgument.of_field("attributes", "empty", "at least one")
        columns = _attribute_arrays(store, request, with_all=False)
        attributes = {
            column.removeprefix(ATTRIBUTE): [
                orjson.dumps(value).decode() for value in values.to_pylist()
            ]
            for column, values in columns.items()
        }
        return replace(change, attributes=attributes)
    return change


def _not_found(loaded: ModelVersion, what: str, name: str, names: Collection[str]) -> ServiceError:
    """Returns the error for a store that a version does not have, or that was not named
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
) -> None:
    """Rejects a change after which a store would have too many changed candidates.

    Args:
      store: The store.
      owner: Its name, as errors show it.
      positions: The positions of the entries that would be changed; -1: a new one.
      settings: The limit.
      now_s: The time, in Unix seconds.
    """
    # Those behind the bundle's are changed already, and count once however often they change.
    further_count = int(np.count_nonzero(positions < store.store.base_size))
    changed_count = store.unexpired_count(now_s) + further_count
    if further_count and changed_count > settings.max_changed_candidates:
        limit = f"{settings.max_changed_candidates} are accepted (max_changed_candidates)"
        message = (
            f"{owner} would have {changed_count} changed entries; at "
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
    version.towers.check_features(features, count)
    if request.kind == "candidates":
        version.towers.check_rankings(store.base.name, features, request.ids)
    types = store.store.types
    columns = {}
    for name in stored_names:
        stored = types[f"feature:{name}"]
        column = features[name]
        width = _width(stored)
        if width is not None:
            default = default_column(name, None, version.loaded.manifest.default_of(name))
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
) -> dict[str, Vectors]:
    """Returns the vectors of candidates by index: those that were sent, or that the tower
    computes.
    """
    owner = f"corpus {store.base.name!r}"
    check_names(request.vectors, store.indexes, "vectors", "an index", owner)
    vectors = {}
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
        vectors[name] = embedded(version.loaded, index, request.features, request.ids.size)
    return vectors


def _checked_vectors(vectors: Vectors, ids: Ids, dim: int, field: str) -> Vectors:
    """Returns the vectors of candidates; rejects those that cannot be searched."""
    count = ids.size
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
