"""What has changed of a store, as the store of a version takes it: a version may have other
features, attributes and types than the one that the changes were checked against.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.states import VECTOR, ChangedItem, Key
from bundle.errors import FormatError
from bundle.stores.attributes import AttributeMisfit, checked_value
from bundle.stores.batches import ATTRIBUTE, checked_batch
from bundle.stores.overlay import StoreOverlay

Lost = Mapping[str, Sequence[Key]]
"""The ids of what a version does not serve, or not whole, by the reason."""
_MISFIT = "it does not fit"


@dataclass(frozen=True, eq=False)
class FittedItems:
    """What has changed of a store, as it takes it.

    Attributes:
      deleted: The ids of what is there no more, [d] int64, or object holding str.
      items: The m candidates or contexts that are added, replaced, or get other attributes.
      sources: [m] int64, the positions of what they keep their other values of; -1: their states
        have all.
      columns: A `pyarrow.Array` of m values for each column of the store.
      expires_s: [m] float64, when they expire, in Unix seconds; NaN: never.
      lost: What is not served, or not whole.
    """

    deleted: NDArray[Any]
    items: Sequence[ChangedItem]
    sources: NDArray[np.int64]
    columns: Mapping[str, Any]
    expires_s: NDArray[np.float64]
    lost: Lost


def fit(
    items: Sequence[ChangedItem],
    overlay: StoreOverlay,
    rejection: Callable[[ChangedItem], str] = lambda _: "",
) -> FittedItems:
    """Returns what has changed of a store, as it takes it. What does not fit it as a whole leaves
    the bundle's candidate or context in its place.

    Args:
      items: What has changed, in its order.
      overlay: The store as it is.
      rejection: Returns why an upsert is not served; "": it is.
    """
    return _Fitting(overlay, rejection).fit(items)


def unfit(upserts: Sequence[ChangedItem], types: Mapping[str, Any]) -> dict[Key, str]:
    """Returns why a store does not take some upserts, by id; others fit it.

    Args:
      upserts: The upserts.
      types: The `pyarrow.DataType` of each column of the store.
    """
    needed = [column for column in types if column != "id" and not column.startswith(ATTRIBUTE)]
    reasons = {}
    for item in upserts:
        missing = [column for column in needed if column not in item.values]
        if missing:
            reasons[item.id] = f"{missing[0].replace(':', ' ')} is missing"
    complete = [item for item in upserts if item.id not in reasons]
    # One by one only if there is one that does not fit.
    if not _fits(complete, types):
        reasons |= {item.id: _MISFIT for item in complete if not _fits([item], types)}
    return reasons


class _Fitting:
    """Fits items to one store.

    Attributes:
      lost: What the store does not take, so far.
    """

    def __init__(self, overlay: StoreOverlay, rejection: Callable[[ChangedItem], str]) -> None:
        self.lost: defaultdict[str, list[Key]] = defaultdict(list)
        self._overlay = overlay
        self._rejection = rejection
        self._types = overlay.types
        self._attributes = overlay.attributes
        self._needed = [
            name for name in self._types if name != "id" and not name.startswith(ATTRIBUTE)
        ]

    def fit(self, items: Sequence[ChangedItem]) -> FittedItems:
        """See `fit`."""
        import pyarrow as pa

        overlay = self._overlay
        items = self._of_the_kind(items)
        upserts = self._upserts(items)
        upserted = {item.id for item in upserts}
        # The others keep what the store has of them; those whose upserts do not fit, the bundle's.
        others = [item for item in items if item.id not in upserted and not item.is_deleted]
        ids = overlay.id_array([item.id for item in others])
        positions = overlay.positions(ids)
        is_rejected = np.array([item.whole is not None for item in others], bool)
        sources = np.where(is_rejected, overlay.exported_positions(ids), positions)
        deleted = [item.id for item in items if item.is_deleted]
        deleted += [others[row].id for row in ((sources < 0) & (positions >= 0)).nonzero()[0]]

        values = [self._attribute_values(item.attributes, item) for item in others]
        # In the order of the changes, too, whether or not an earlier upsert was applied before.
        is_changed = is_rejected | np.array([bool(each) for each in values], bool)
        (kept,) = (is_changed & (sources >= 0)).nonzero()
        stored = overlay.store.arrays(sources[kept], [*self._types])
        fitted = [*upserts, *(others[row] for row in kept)]
        values = [self._upserted_attributes(item) for item in upserts] + [
            values[row] for row in kept
        ]
        # In the order of the items.
        places = {item.id: place for place, item in enumerate(items)}
        order = np.argsort([places[item.id] for item in fitted]).astype(np.int64)
        columns = _features(upserts, self._types)
        for name in self._attributes:
            column = f"{ATTRIBUTE}{name}"
            columns[column] = pa.nulls(len(upserts), self._types[column])
        for name, column in columns.items():
            columns[name] = pa.concat_arrays([column, stored[name]])
        return FittedItems(
            deleted=overlay.id_array(deleted),
            items=[fitted[row] for row in order],
            sources=np.append(np.full(len(upserts), -1, np.int64), sources[kept])[order],
            columns=self._reordered(columns, values, order),
            expires_s=np.append(
                np.array([_expiry(item) for item in upserts], np.float64),
                overlay.expires_s(sources[kept]),
            )[order],
            lost=self.lost,
        )

    def _of_the_kind(self, items: Sequence[ChangedItem]) -> list[ChangedItem]:
        """Returns the items whose ids are of the store's kind."""
        kind = int if self._overlay.id_dtype == "int64" else str
        self._lose(_MISFIT, [item for item in items if type(item.id) is not kind])
        return [item for item in items if type(item.id) is kind]

    def _upserts(self, items: Sequence[ChangedItem]) -> list[ChangedItem]:
        """Returns the upserts that fit the store."""
        upserts = [item for item in items if item.whole is not None and not item.is_deleted]
        reasons = unfit(upserts, self._types)
        accepted = []
        for item in upserts:
            reason = self._rejection(item) or reasons.get(item.id)
            if reason:
                self._lose(reason, [item])
            else:
                accepted.append(item)
        return accepted

    def _upserted_attributes(self, item: ChangedItem) -> dict[str, Any]:
        """Returns the values of the attributes that an upsert has, and later changes of them; notes
        what the store has no place for.
        """
        attributes = {}
        for column, value in item.values.items():
            if column.startswith(ATTRIBUTE):
                attributes[column.removeprefix(ATTRIBUTE)] = value
            elif column not in self._types and not column.startswith(VECTOR):
                self._lose(no_place(column), [item])
        attributes |= item.attributes
        return self._attribute_values(attributes, item)

    def _attribute_values(self, values: Mapping[str, Any], item: ChangedItem) -> dict[str, Any]:
        """Returns those of some values of attributes that the store has; null in the place of one
        of another type, since an older value does not count any more.
        """
        taken = {}
        for name, value in values.items():
            fitting = None
            if name in self._attributes:
                try:
                    fitting = checked_value(self._attributes[name], value)
                except AttributeMisfit:
                    fitting = None
                taken[name] = fitting
            if fitting is None and value is not None:
                self._lose(no_place(f"{ATTRIBUTE}{name}"), [item])
        return taken

    def _reordered(
        self,
        columns: Mapping[str, Any],
        attributes: Sequence[Mapping[str, Any]],
        order: NDArray[np.int64],
    ) -> dict[str, Any]:
        """Returns columns in another order, with the values of attributes that items give."""
        import pyarrow as pa

        indices = pa.array(order)
        reordered = {}
        for name, column in columns.items():
            attribute = name.removeprefix(ATTRIBUTE)
            merged = column
            if attribute != name and any(attribute in values for values in attributes):
                cells = column.to_pylist()
                for row, values in enumerate(attributes):
                    cells[row] = values.get(attribute, cells[row])
                merged = pa.array(cells, column.type)
            reordered[name] = merged.take(indices)
        return reordered

    def _lose(self, reason: str, items: Sequence[ChangedItem]) -> None:
        if items:
            self.lost[reason] += [item.id for item in items]


def _fits(upserts: Sequence[ChangedItem], types: Mapping[str, Any]) -> bool:
    try:
        _features(upserts, types)
    except FormatError:
        return False
    return True


def _features(upserts: Sequence[ChangedItem], types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ids, features and weights of upserts by column.

    Raises:
      FormatError: A value does not fit its column.
    """
    import pyarrow as pa

    types = {name: kind for name, kind in types.items() if not name.startswith(ATTRIBUTE)}
    columns = {}
    for name, kind in types.items():
        values = [item.id if name == "id" else item.values[name] for item in upserts]
        # One value is a list of it, as where a file is exported.
        if pa.types.is_large_list(kind):
            values = [value if isinstance(value, list) else [value] for value in values]
        try:
            columns[name] = pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
            raise FormatError(f"column {name!r}: {problem}") from problem
    return checked_batch(pa.record_batch(columns), types)


def no_place(column: str) -> str:
    """Returns the reason why a value of a column is lost which the store does not have."""
    return f"this version has no place for {column.replace(':', ' ')}"


def _expiry(item: ChangedItem) -> float:
    """Returns when an upserted candidate expires, in Unix seconds; NaN: never."""
    if item.whole is None or item.whole.expires_s is None:
        return math.nan
    return item.whole.expires_s
