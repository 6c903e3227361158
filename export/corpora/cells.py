"""One column of one batch of a corpus: what each value says, checked; a wrong one is named by file, row and column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.manifest import ArithmeticIds, BucketIds, ComputedIds, DenseFeature, Feature, IdentityIds, first_of
from export.corpora.files import Origin
from export.errors import NotConvertible

INTEGER = r"^(0|-?[1-9][0-9]*)$"
"""A whole number spelled as Python prints it, so that the number and the text say the same."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class Cells:
    """The cells of a batch: text of a CSV file, values of a Parquet file, or lists of values of Examples."""

    def __init__(self, array: Any, origin: Origin, kind: str) -> None:
        """Takes the cells.

        Args:
          array: a `pyarrow.Array`.
          origin: of the cells, with their column.
          kind: csv, parquet or tfrecord.
        """
        import pyarrow as pa

        self.array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        self.origin = origin
        self.is_text = kind == "csv"
        self._are_lists = kind == "tfrecord"

    def single(self) -> Cells:
        """Returns the cells as one value each, an empty list of an Example as null.

        Raises:
          NotConvertible: an Example has several values.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._are_lists:
            return self
        lengths = pc.list_value_length(self.array)
        several = pc.index(pc.greater(lengths, 1), True).as_py()
        if several >= 0:
            cure = "" if self.origin.records is not None else "; if records hold many candidates, say prebatched = true"
            raise NotConvertible(f"{self.origin.at(several)} has {lengths[several]} values; one was expected{cure}")
        flat = self.array.flatten()
        places = pa.array(self.array.offsets.to_numpy()[:-1])
        absent = pc.equal(lengths, 0)
        values = flat.take(pc.if_else(absent, pa.scalar(None, pa.int64()), places)) if len(flat) else None
        return Cells(pa.nulls(len(self.array)) if values is None else values, self.origin, "parquet")

    def absent(self) -> Any:
        """Returns where a cell is empty: a `pyarrow.BooleanArray`."""
        import pyarrow.compute as pc

        return pc.equal(self.array, "") if self.is_text else self.array.is_null()

    def integers(self) -> Any:
        """Returns what are integers already as an Arrow int64 array."""
        return Values(self.array, None, self.origin).int64()

    def refuse(self, wrong: Any, told: str) -> None:
        """Raises NotConvertible for the first cell that is wrong, if one is."""
        Values(self.array, None, self.origin).refuse(wrong, told)

    def feature(self, feature: Feature, separator: str) -> Column:
        """Returns the column as a caller would send it.

        Raises:
          NotConvertible: a value does not fit its feature.
        """
        cells, offsets = self._flat(feature, separator)
        if isinstance(feature, DenseFeature):
            size = int(np.prod(feature.shape, dtype=np.int64))
            if offsets is not None and feature.take in ("padded", "weights"):
                wrong = np.diff(offsets) > size
                if wrong.any():
                    row = int(np.argmax(wrong))
                    told = f"{self.origin.at(row)} has {np.diff(offsets)[row]} values; a tower takes {size} at most"
                    raise NotConvertible(told)
            elif offsets is not None:
                wrong = (np.diff(offsets) != size) & ((np.diff(offsets) != 0) | (feature.default is None))
                if wrong.any():
                    row = int(np.argmax(wrong))
                    raise NotConvertible(
                        f"{self.origin.at(row)} has {np.diff(offsets)[row]} values; "
                        f"a feature of shape {feature.shape} takes {size}"
                    )
            taken = {"float32": cells.floats, "string": cells.texts}
            values = taken.get(feature.dtype, cells.integers)()
        else:
            rule, real = first_of(feature.ids), feature.cast is not None and feature.cast.of == "float32"
            whole = isinstance(rule, IdentityIds | ArithmeticIds | ComputedIds)
            real = real or isinstance(rule, BucketIds)
            values = cells.floats() if real else cells.feature_ids(integers_only=whole)
        return Column(values, offsets)

    def attribute(self, separator: str | None) -> Any:
        """Returns an Arrow array; of text, strings, or lists of strings where a separator is given."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._are_lists:
            return self.single().array if separator is None else self._typed_lists()
        if not self.is_text:
            return self.array
        empty = pc.equal(self.array, "")
        if separator is not None:
            return pc.if_else(empty, pa.scalar([], pa.list_(pa.string())), self._split(separator))
        return pc.if_else(empty, pa.scalar(None, pa.string()), self.array)

    def _typed_lists(self) -> Any:
        import pyarrow as pa

        # A list that is empty in all of a batch has no type of its own.
        empty = pa.types.is_null(self.array.type.value_type)
        return self.array.cast(pa.large_list(pa.large_string())) if empty else self.array

    def _flat(self, feature: Feature, separator: str) -> tuple[Values, NDArray[np.int64] | None]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not holds_lists(feature):
            return self.single()._flat_single(feature)
        array, kind = self.array, self.array.type
        if self.is_text:
            empty = pc.equal(array, "")
            array = pc.if_else(empty, pa.scalar([], pa.list_(pa.string())), self._split(separator))
        elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            if feature.kind == "bag" and number:  # one of each candidate, or none; text may hold several
                return self._flat_single(feature)
            raise NotConvertible(f"{self.origin} holds {kind}; a list per candidate was expected for its feature")
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Values(array.flatten(), np.repeat(np.arange(len(lengths)), lengths), self.origin), offsets

    def _flat_single(self, feature: Feature) -> tuple[Values, NDArray[np.int64] | None]:
        import pyarrow.compute as pc

        absent = self.absent()
        if not pc.any(absent).as_py():
            return Values(self.array, None, self.origin), None
        if feature.default is None and feature.kind != "bag":
            self.refuse(absent, "is empty, and its feature has no default")
        present = pc.invert(absent).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(present)]).astype(np.int64)
        return Values(self.array.filter(pc.invert(absent)), np.flatnonzero(present), self.origin), offsets

    def _split(self, separator: str) -> Any:
        import pyarrow.compute as pc

        return pc.split_pattern(self.array, pattern=separator)


class Values:
    """Values that are all of one type, with the rows of the batch that they come from."""

    def __init__(self, array: Any, rows: NDArray[np.int64] | None, origin: Origin) -> None:
        import pyarrow as pa

        # Lists that are all empty have values of no type.
        self._array = array.cast(pa.string()) if pa.types.is_null(array.type) else array
        self._rows, self._origin = rows, origin

    def feature_ids(self, integers_only: bool) -> NDArray[Any]:
        """Returns int64, or objects holding str where some value is no integer and the id rule takes strings."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._array.type
        if pa.types.is_integer(kind):
            return self.integers()
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            self.refuse(self._anything(), f"is {kind}; an id, integer or string, was expected")
        self.refuse(self._array.is_null(), "is null; an id was expected")
        self.refuse(pc.equal(self._array, ""), "is an empty id")
        if integers_only or pc.all(pc.match_substring_regex(self._array, INTEGER)).as_py():
            return self.integers()
        values = np.empty(len(self._array), object)
        values[:] = self._array.to_pylist()
        return values

    def texts(self) -> NDArray[Any]:
        """Returns objects holding str."""
        import pyarrow as pa

        kind = self._array.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            self.refuse(self._anything(), f"is {kind}; a string was expected")
        self.refuse(self._array.is_null(), "is null; a string was expected")
        values = np.empty(len(self._array), object)
        values[:] = self._array.to_pylist()
        return values

    def integers(self) -> NDArray[np.int64]:
        """Returns int64."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._array.type
        self.refuse(self._array.is_null(), "is null; an integer was expected")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            whole = pc.match_substring_regex(self._array, INTEGER)
            self.refuse(pc.invert(whole), "is no integer, which was expected")
        elif not pa.types.is_integer(kind):
            self.refuse(self._anything(), f"is {kind}; an integer was expected")
        values: NDArray[np.int64] = self.int64().to_numpy(zero_copy_only=False)
        return values

    def int64(self) -> Any:
        """Returns an Arrow int64 array of what are integers already."""
        import pyarrow as pa

        try:
            return self._array.cast(pa.int64())
        except pa.ArrowInvalid as problem:
            beyond = [not -(1 << 63) <= int(value) < 1 << 63 for value in self._array.to_pylist()]
            self.refuse(pa.array(beyond), "is beyond int64")
            raise NotConvertible(f"{self._origin}: {problem}") from problem

    def floats(self) -> NDArray[np.float32]:
        """Returns finite float32."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self._array.type
        self.refuse(self._array.is_null(), "is null; a number was expected")
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self.refuse(
                pc.invert(pc.match_substring_regex(self._array, NUMBER)), "is no finite number, which was expected"
            )
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            self.refuse(self._anything(), f"is {kind}; a number was expected")
        wide = self._array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            values: NDArray[np.float32] = wide.astype(np.float32)
        self.refuse(pa.array(~np.isfinite(values)), "is no finite float32, which was expected")
        return values

    def refuse(self, wrong: Any, told: str) -> None:
        """Raises NotConvertible for the first value that is wrong, if one is."""
        import pyarrow.compute as pc

        place = pc.index(wrong, True).as_py()
        if place < 0:
            return
        row = place if self._rows is None else int(self._rows[place])
        value = str(self._array[place].as_py())
        raise NotConvertible(f"{self._origin.at(row)}: {value[:80]!r} {told}")

    def _anything(self) -> Any:
        import pyarrow.compute as pc

        return pc.is_valid(self._array)


def holds_lists(feature: Feature) -> bool:
    """Tells whether a feature takes several values of a candidate."""
    if isinstance(feature, DenseFeature):
        return feature.shape != ()
    return feature.kind != "single"
