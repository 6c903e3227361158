"""Candidates that come in an Arrow record batch, as a store holds them or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bundle.errors import FormatError
from bundle.storage import arrow
from bundle.stores.attributes import checked_values
from bundle.stores.writer import cast, is_list

_WHERE = "the batch"
_WEIGHTS = "weights:"
ATTRIBUTE = "attribute:"
"""The beginning of the names of columns of attributes."""


def checked_batch(batch: Any, types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns candidates with the columns of a store, copied.

    Args:
      batch: A `pyarrow.RecordBatch` with the same columns in any order, of types that mean the
        same: integers of any width, for example, or one value where the store has lists.
      types: The type of each column of the store.

    Returns:
      A `pyarrow.Array` by column.

    Raises:
      FormatError: A column is missing, comes twice or is none of the store's; a column has another
        type; a value does not fit the type; an id, a feature or a weight is null; or weights do
        not lie beside their values. Names the column.
    """
    # Unknown columns are an error: a typing mistake would otherwise drop a column unnoticed.
    counts = Counter(batch.schema.names)
    for name, count in counts.items():
        if name not in types:
            kind = _type_name(batch.schema.field(name).type)
            raise FormatError(
                f"{_WHERE} has a column {name!r} of {kind}, which the store does not have; it has "
                f"{', '.join(types)}"
            )
        if count > 1:
            raise FormatError(f"{_WHERE} has {count} columns {name!r}; one was expected")
    arrays = {}
    for name, kind in types.items():
        if name not in counts:
            raise FormatError(
                f"{_WHERE} has no column {name!r}; a column of {_type_name(kind)} was expected"
            )
        arrays[name] = checked_column(name, batch.column(name), kind)
        if not name.startswith(ATTRIBUTE):
            _check_nulls(name, arrays[name])
        if name.startswith(_WEIGHTS):
            _check_weights(name.removeprefix(_WEIGHTS), arrays)
    return arrays


def checked_column(name: str, column: Any, kind: Any) -> Any:
    """Returns the values of one column, copied. Nulls are not checked.

    Args:
      name: The name of the column.
      column: A `pyarrow.Array`, or a `pyarrow.ChunkedArray`.
      kind: The type of the column in the store.

    Returns:
      A `pyarrow.Array` of the type.

    Raises:
      FormatError: The column has another type, or a value does not fit the type.
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    try:
        column.validate(full=True)
        if column.type != kind:
            column = _cast(name, column, kind)
    except pa.ArrowException as problem:
        raise FormatError(
            f"column {name!r}: {problem}; {_type_name(kind)} was expected"
        ) from problem
    if name.startswith(ATTRIBUTE):
        column = checked_values(name.removeprefix(ATTRIBUTE), column)
    # Copied: a slice, or a column that was received with others, keeps all their memory.
    return pa.concat_arrays([column])


def _cast(name: str, column: Any, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_attribute = name.startswith(ATTRIBUTE)
    # A column of nulls has no type of its own; only attributes may be null.
    is_empty = is_attribute and pa.types.is_null(column.type)
    if not is_empty and not _fits(column.type, kind, is_attribute):
        raise FormatError(
            f"column {name!r} has type {_type_name(column.type)}; {_type_name(kind)} was expected"
        )
    return cast(column, kind)


def _check_nulls(name: str, column: Any) -> None:
    null_count = column.null_count
    if is_list(column.type):
        null_count += column.values.null_count
    if null_count:
        raise FormatError(
            f"column {name!r} holds {null_count} nulls; {_type_name(column.type)} without nulls "
            "was expected"
        )


def _check_weights(feature: str, arrays: Mapping[str, Any]) -> None:
    import pyarrow as pa

    values = arrays[f"feature:{feature}"]
    weights = arrays[_WEIGHTS + feature]
    # Lists of a fixed length agree by their types.
    if pa.types.is_large_list(values.type) and not values.offsets.equals(weights.offsets):
        raise FormatError(
            f"column {_WEIGHTS + feature!r} has lists of other lengths than column "
            f"'feature:{feature}'; a weight of each value was expected"
        )


def _fits(kind: Any, expected: Any, is_attribute: bool) -> bool:
    """Returns whether values of one type mean the same as values of another one that they fit."""
    import pyarrow as pa

    types = pa.types
    if is_list(expected):
        if is_list(kind):
            has_no_values = types.is_null(kind.value_type)
            return has_no_values or _fits(kind.value_type, expected.value_type, is_attribute)
        # One value is a list of it, as where a file is exported.
        is_bag = types.is_large_list(expected) and not is_attribute
        return is_bag and _fits(kind, expected.value_type, is_attribute)
    if types.is_integer(expected):
        return bool(types.is_integer(kind))
    if types.is_floating(expected):
        return bool(types.is_integer(kind) or types.is_floating(kind))
    return arrow.kind_of(kind) == arrow.kind_of(expected)


def _type_name(kind: Any) -> str:
    """Returns the name of a type as users write it."""
    return arrow.kind_of(kind)
