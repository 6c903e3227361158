"""The keys of a model's lookup tables.

Source: TensorFlow 2.20: lookup tables, as in the layers StringLookup and IntegerLookup of tf-keras
2.20 and Keras 3.15.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from export.errors import NotConvertible
from export.graphs.loading import tf
from export.partition.graph.input_paths import Values
from export.user_lines import at_line, line_of_operation

UNNAMED = "vocabulary"
"""The name of a vocabulary until all of them are known."""


def exported(values: Values, table: Any) -> tuple[list[int] | list[bytes], int] | None:
    """Returns the keys of a lookup table in the order of their values, and the first value.

    Args:
      values: The values that `LookupTableFindV2` returns.
      table: The handle of the table.

    Returns:
      The keys and the first value; None if the values are no consecutive integers of at least 0.

    Raises:
      NotConvertible: The table has no keys yet; names the user's line.
    """
    _, ids, default = values.inputs
    if not default.tensor.dtype.is_integer:
        return None
    try:
        keys, positions = tf.raw_ops.LookupTableExportV2(
            table_handle=table, Tkeys=ids.tensor.dtype, Tvalues=default.tensor.dtype
        )
    except tf.errors.AbortedError as problem:
        raise NotConvertible(
            f"ids are looked up{at_line(line_of_operation(values.tensor.op))} in a vocabulary that "
            "is not there: checkpoints hold none; let the factory pass it to the layer, or adapt() "
            "the layer as training did"
        ) from problem
    # A table is exported in no particular order.
    order = np.argsort(positions.numpy())
    ascending = positions.numpy()[order]
    if not ascending.size or ascending[0] < 0:
        return None
    first = int(ascending[0])
    if not np.array_equal(ascending, np.arange(first, first + ascending.size)):
        return None
    return keys.numpy()[order].tolist(), first


def text_of(data: bytes) -> str | None:
    """Returns a text in UTF-8; None for other bytes, which no request can hold."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
