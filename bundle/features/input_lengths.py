"""Lists of an input that takes a fixed number of values per example: checked, padded or cut.

What a model was trained on has one length. A list of another length is an error, unless the recipe
of the export says what pads it, or which of its values stay. An example without values takes the
default of the input, if there is one and nothing pads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import WrongLength
from bundle.features.columns import Column, checked_offsets, checked_weights
from bundle.format.features import (
    DenseFeature,
    EmbeddedFeature,
    input_facts,
    readers_of,
)
from bundle.format.input_lengths import InputLength
from bundle.tables.offsets import Offsets, lengths_of, offsets_of


class FittedColumn(NamedTuple):
    """A column in which each example has as many values as the input takes.

    Attributes:
      column: The values.
      cut: The number of examples that had more values.
      padded: The number of examples that had fewer values, and were padded.
    """

    column: Column
    cut: int = 0
    padded: int = 0


class FittedColumns(NamedTuple):
    """Columns by input, each as long as its input takes.

    Attributes:
      columns: The columns, by input.
      cut: The number of examples that had more values, by input, where there are any.
      padded: The number of examples that had fewer values, by input, where there are any.
    """

    columns: Mapping[str, Column]
    cut: Mapping[str, int] = MappingProxyType({})
    padded: Mapping[str, int] = MappingProxyType({})


class InputLengths:
    """The inputs of a model that take a fixed number of values."""

    def __init__(self, features: Mapping[str, EmbeddedFeature | DenseFeature]) -> None:
        """Collects the inputs from the features of a manifest.

        Raises:
          FeatureError: The default of an input has another number of values; names the input.
        """
        self.entries: dict[str, InputLength] = {}
        self._defaults: dict[str, Column | None] = {}
        for name, readers in readers_of(features).items():
            facts = input_facts(name, features[readers[0]])
            if facts.length is not None:
                self.entries[name] = facts.length
                self._defaults[name] = default_column(name, facts.length, facts.default)

    def fit(self, columns: Mapping[str, Column], n: int) -> FittedColumns:
        """Checks, pads or cuts what was sent of n examples; see `fit_length`.

        It changes nothing of columns that it returned before. Methods of a FeatureReader that read
        columns fit them themselves: callers of this one count what was padded or cut.
        """
        changed: dict[str, Column] = {}
        cut: dict[str, int] = {}
        padded: dict[str, int] = {}
        for name, entry in self.entries.items():
            column = columns.get(name)
            if column is None:
                continue
            fitted = fit_length(name, entry, column, n, self._defaults[name])
            if fitted.column is not column:
                changed[name] = fitted.column
            if fitted.cut:
                cut[name] = fitted.cut
            if fitted.padded:
                padded[name] = fitted.padded
        if not changed:
            return FittedColumns(columns)
        return FittedColumns({**columns, **changed}, cut, padded)


def with_fitted_defaults(
    feature: EmbeddedFeature | DenseFeature, inputs: tuple[str, ...]
) -> EmbeddedFeature | DenseFeature:
    """Returns a feature whose defaults have as many values as its inputs take.

    Raises:
      FeatureError: See `fitted_default`.
    """
    if isinstance(feature, EmbeddedFeature) and feature.joint is not None:
        joint = []
        for name, joint_input in zip(inputs, feature.joint, strict=True):
            default = fitted_default(name, joint_input.input_length, joint_input.default)
            joint.append(joint_input.model_copy(update={"default": default}))
        return feature.model_copy(update={"joint": tuple(joint)})
    default = fitted_default(inputs[0], feature.input_length, feature.default)
    return feature.model_copy(update={"default": default})


def fitted_default(name: str, entry: InputLength | None, default: Any) -> Any:
    """Returns the default of an input with as many values as the input takes, in the same form.

    Raises:
      FeatureError: It has another number of values, and the entry does not say what becomes of it.
    """
    if entry is None or default is None:
        return default
    stated = _stated_column(default)
    fitted = fit_length(name, entry, stated, 1).column
    if fitted is stated:
        return default
    values = fitted.values.tolist()
    if fitted.weights is None:
        return values
    return {"ids": values, "weights": fitted.weights.tolist()}


def default_column(name: str, entry: InputLength | None, default: Any) -> Column | None:
    """Returns the default of an input as a column of one example, of the length that the input
    takes; None: it has no default.

    Raises:
      FeatureError: See `fitted_default`.
    """
    fitted = fitted_default(name, entry, default)
    if fitted is None:
        return None
    return _stated_column(fitted)


def _stated_column(default: Any) -> Column:
    """Returns the column of one example with the values and weights of a default."""
    weights = None
    if isinstance(default, dict):
        if "weights" in default:
            weights = np.asarray(default["weights"], np.float32).reshape(-1)
        default = default["ids"]
    values = np.asarray(default).reshape(-1)
    if values.dtype.kind == "U":
        values = values.astype(object)
    if not values.size:
        values = values.astype(np.int64)
    return Column(values, None, weights)


def fit_length(
    name: str, entry: InputLength, column: Column, n: int, default: Column | None = None
) -> FittedColumn:
    """Returns a column of n examples with `entry.values` values each.

    Args:
      name: The input.
      entry: The entry of the manifest: the number of values, and what becomes of other lists.
      column: The column that was sent.
      n: The number of examples.
      default: The value of an example without values; None: the input has no default.

    Raises:
      WrongLength: An example has another number of values, and the entry does not say what becomes
        of it.
      FeatureError: The offsets do not fit.
    """
    # The usual requests: all lists fit, which shows in the shape or in one comparison.
    expected = entry.values
    if column.offsets is None and column.values.shape == (n * expected,):
        return FittedColumn(column)
    offsets = checked_offsets(name, column, n)
    lengths = lengths_of(offsets)
    is_wrong = lengths != expected
    if not np.count_nonzero(is_wrong):
        return FittedColumn(column)

    # An empty list is padded where there is padding, and takes the default otherwise.
    takes_default = np.zeros(n, bool)
    if entry.pad is None and default is not None:
        takes_default = lengths == 0
    _check_lengths(name, entry, lengths, takes_default)
    is_short = (lengths < expected) & ~takes_default
    values = _fit_values(entry, column.values, offsets, entry.pad)
    weights = column.weights
    if weights is not None:
        # With the weight 0, padding counts for nothing in a weighted sum or mean.
        weights = _fit_values(entry, checked_weights(name, column), offsets, 0.0)
    if default is not None and takes_default.any():
        values, default_values = _with_one_dtype(values, default.values)
        values[takes_default] = default_values
        if weights is not None:
            weights[takes_default] = 1.0
            if default.weights is not None:
                weights[takes_default] = default.weights
    if weights is not None:
        weights = weights.reshape(-1)
    fitted = Column(values.reshape(-1), None, weights)
    cut = int(np.count_nonzero(lengths > expected))
    return FittedColumn(fitted, cut, int(np.count_nonzero(is_short)))


def value_counts(
    columns: Mapping[str, Column], lengths: Mapping[str, InputLength], n: int
) -> NDArray[np.int64]:
    """Returns [n] the number of values of each example, without the padding at their end: that of
    the longest of several inputs.

    Args:
      columns: The columns of n examples, fitted, by input.
      lengths: The lengths of the inputs that count, which are padded at their end.
      n: The number of examples.
    """
    counts = np.zeros(n, np.int64)
    for name, entry in lengths.items():
        column = columns.get(name)
        if column is None:
            # The default of the input may fill all of it.
            return np.full(n, entry.values)
        is_value = column.values.reshape(n, entry.values) != entry.pad
        behind_last = entry.values - is_value[:, ::-1].argmax(axis=1)
        counts = np.maximum(counts, np.where(is_value.any(axis=1), behind_last, 0))
    return counts


def _check_lengths(
    name: str,
    entry: InputLength,
    lengths: NDArray[np.int64],
    takes_default: NDArray[np.bool_],
) -> None:
    """Raises WrongLength if an example is neither padded, nor cut, nor takes the default."""
    is_wrong = np.zeros(lengths.size, bool)
    if entry.pad is None:
        is_wrong |= (lengths < entry.values) & ~takes_default
    if entry.keep is None:
        is_wrong |= lengths > entry.values
    if not is_wrong.any():
        return
    example = int(np.argmax(is_wrong))
    expected = str(entry.values)
    if entry.pad is not None:
        expected = f"at most {expected}"
    if entry.keep is not None:
        expected = f"at least {expected}"
    raise WrongLength(name, example, lengths[example], expected)


def _fit_values(
    entry: InputLength, values: NDArray[Any], offsets: Offsets, pad: object
) -> NDArray[Any]:
    """Returns [n, expected]: the values of each example that stay, and `pad` beside them."""
    # Of each example: how many values stay, where they begin, and where they go.
    lengths = lengths_of(offsets)
    counts = np.minimum(lengths, entry.values)
    sources = offsets[:-1]
    if entry.keep == "last":
        sources = offsets[1:] - counts
    targets = np.zeros(lengths.size, np.int64)
    if entry.pad_side == "start":
        targets = entry.values - counts

    steps = np.arange(counts.sum()) - offsets_of(counts)[:-1].repeat(counts)
    if pad is None:
        pad = 0  # nothing is padded, or the default replaces it
    values, filler = _with_one_dtype(values, _array_of(pad))
    fitted = np.full((lengths.size, entry.values), filler[0], values.dtype)
    rows = np.arange(lengths.size).repeat(counts)
    fitted[rows, targets.repeat(counts) + steps] = values[sources.repeat(counts) + steps]
    return fitted


def _array_of(value: object) -> NDArray[Any]:
    """Returns an array of one value; that of a string holds objects."""
    if isinstance(value, str):
        return np.array([value], object)
    return np.array([value])


def _with_one_dtype(
    values: NDArray[Any], fillers: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns values and what fills them up with one dtype: strings of digits are integers, too."""
    if not values.size:
        return values.astype(fillers.dtype), fillers
    if (values.dtype == object) != (fillers.dtype == object):
        return values.astype(str).astype(object), fillers.astype(str).astype(object)
    if values.dtype == object:
        return values, fillers
    dtype = np.result_type(values, fillers)
    if np.issubdtype(dtype, np.float64) and values.dtype != np.float64:
        # A float in the recipe does not make the numbers of a request more precise.
        dtype = np.dtype(np.float32)
    return values.astype(dtype), fillers.astype(dtype)
