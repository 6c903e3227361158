"""Values of attributes: what a value of each type is, and what is refused. Exports, changes and
logs of changes share it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from bundle.errors import FormatError, Misfit
from bundle.storage import arrow
from bundle.tables.id_values import int64_of, short_text

CAST_REMEDY = "cast it to one of int64, double, string, bool or list<string> before the export"
_EXACT_MAX = 2.0**53
"""Integers up to this one are exact as floats."""


class AttributeMisfit(Misfit):
    """A value is none of its attribute's type."""


def array_of_values(kind: str, values: Sequence[Any]) -> Any:
    """Returns the values that a caller sends of one attribute as a store has them.

    Args:
      kind: The type of the attribute: int64, double, string, bool or list<string>.
      values: None, or a value of Python. An int64 is an int, a float without a fraction from -2^53
        to 2^53, or the decimal text of an integer; a double is an int or a float. NaN is null.

    Returns:
      A `pyarrow.Array` of as many values, null where there is none.

    Raises:
      AttributeMisfit: A value is of another type, or infinite, or beyond int64; or a list holds
        something else than strings.
    """
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "double": pa.float64(),
        "string": pa.large_string(),
        "bool": pa.bool_(),
        "list<string>": pa.large_list(pa.large_string()),
    }
    return pa.array([checked_value(kind, value) for value in values], types[kind])


def checked_value(kind: str, value: Any) -> Any:
    """Returns a value with its attribute's type; None: it has none; arguments and errors as of
    `array_of_values`.
    """
    # By types and not by `isinstance`: for it, True would be an integer.
    python_type = type(value)
    is_nan = python_type is float and math.isnan(value)
    if value is None or (is_nan and kind in {"int64", "double"}):
        return None
    checked: Any = None
    match kind:
        case "int64":
            checked = int64_of(value)
            # Beyond, a float may be the nearest one to another integer, as which it was written.
            if python_type is float and value.is_integer() and abs(value) <= _EXACT_MAX:
                checked = int(value)
        # An integer beyond the largest float is none.
        case "double" if python_type in {int, float} and abs(value) <= sys.float_info.max:
            checked = float(value)
        case "list<string>" if python_type is list and set(map(type, value)) <= {str}:
            checked = value
        case "string" | "bool" if python_type is {"string": str, "bool": bool}[kind]:
            checked = value
    if checked is None:
        raise AttributeMisfit("attribute", short_text(value), f"{kind} or null")
    return checked


def attribute_array(name: str, values: Any, size: int) -> Any:
    """Returns the values of an attribute as a store has them: int64, double, large_string, bool,
    null, or large lists of large strings.

    Args:
      name: The name of the attribute.
      values: A `pyarrow.Array`, or a `pyarrow.ChunkedArray`.
      size: The number of candidates.

    Raises:
      FormatError: A store has no such type or value, or the number of values is another one.
    """
    import pyarrow as pa

    array = values
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    # Strings that are encoded as numbers are stored as strings.
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if len(array) != size:
        raise FormatError(
            f"attribute {name!r} has {len(array)} values for {size} candidates; one each was "
            "expected"
        )
    kind = array.type
    try:
        if pa.types.is_integer(kind):
            array = array.cast(pa.int64())
        elif pa.types.is_floating(kind):
            array = array.cast(pa.float64())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            array = array.cast(pa.large_string())
        elif arrow.kind_of(kind) == "list<string>":
            array = array.cast(pa.large_list(pa.large_string()))
        elif not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise FormatError(f"attribute {name!r} has Arrow type {kind}; {CAST_REMEDY}")
    except pa.ArrowInvalid as problem:
        raise FormatError(
            f"attribute {name!r} of Arrow type {kind}: {problem}; {CAST_REMEDY}"
        ) from problem
    return checked_values(name, array)


def checked_values(name: str, array: Any) -> Any:
    """Returns the values of an attribute with null in the place of NaN.

    Args:
      name: The name of the attribute.
      array: A `pyarrow.Array` of a type that stores have.

    Raises:
      FormatError: A number is infinite, or a list holds null.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_large_list(array.type) and array.flatten().null_count:
        raise FormatError(f"attribute {name!r} holds a list with null; leave the null out of it")
    if not pa.types.is_floating(array.type):
        return array
    array = pc.if_else(pc.is_nan(array), pa.scalar(None, pa.float64()), array)
    if pc.any(pc.is_inf(array)).as_py():
        raise FormatError(
            f"attribute {name!r} holds {math.inf}, which JSON cannot carry; write null instead"
        )
    return array
