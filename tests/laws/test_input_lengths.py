"""Lists become as long as their input takes as slices of Python do, or are errors."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.errors import WrongLength
from bundle.features.columns import Column
from bundle.features.input_lengths import FittedColumn, fit_length
from bundle.format.input_lengths import InputLength
from bundle.tables.offsets import offsets_of

_kinds = st.sampled_from(
    [
        (st.integers(-(2**63), 2**63 - 1), np.dtype(np.int64)),
        (st.text(max_size=3), np.dtype(object)),
        (st.floats(width=32, allow_nan=False), np.dtype(np.float32)),
    ]
)


def right(values: list[Any], entry: InputLength, default: list[Any] | None) -> list[Any] | None:
    """Returns the list that a model is given; None: an error was expected."""
    size = entry.values
    if not values and entry.pad is None and default is not None:
        return default
    if len(values) > size:
        chosen = {None: None, "first": values[:size], "last": values[len(values) - size :]}
        return chosen[entry.keep]
    if len(values) == size:
        return values
    if entry.pad is None:
        return None
    filling = [entry.pad] * (size - len(values))
    return values + filling if entry.pad_side == "end" else filling + values


def fitted(
    entry: InputLength, lists: list[list[Any]], dtype: np.dtype[Any], default: list[Any] | None
) -> FittedColumn:
    values = np.array([value for example_list in lists for value in example_list], dtype)
    offsets = offsets_of([len(example_list) for example_list in lists])
    stated = None if default is None else Column(np.array(default, dtype))
    return fit_length("recent", entry, Column(values, offsets), len(lists), stated)


@given(kind=_kinds, data=st.data())
def test_lists_are_padded_and_cut_as_slices_or_rejected(kind: Any, data: st.DataObject) -> None:
    values, dtype = kind
    size = data.draw(st.integers(1, 4))
    pad = data.draw(st.none() | values)
    side: Literal["start", "end"] = "end"
    if pad is not None:
        side = data.draw(st.sampled_from(["start", "end"]))
    keep = data.draw(st.sampled_from([None, "first", "last"]))
    entry = InputLength(values=size, pad=pad, pad_side=side, keep=keep)
    lists = data.draw(st.lists(st.lists(values, max_size=6), min_size=1, max_size=5))
    default = data.draw(st.none() | st.lists(values, min_size=size, max_size=size))

    expected = [right(example_list, entry, default) for example_list in lists]
    if None in expected:
        with pytest.raises(WrongLength) as problem:
            fitted(entry, lists, dtype, default)
        assert problem.value.example == expected.index(None)
        return
    actual = fitted(entry, lists, dtype, default)
    assert actual.column.values.reshape(-1, size).tolist() == expected
    lengths = [len(example_list) for example_list in lists]
    assert actual.cut == sum(length > size for length in lengths)
    assert actual.padded == sum(length < size for length in lengths if pad is not None)
    second = fit_length("recent", entry, actual.column, len(lists))
    assert second == (actual.column, 0, 0)
