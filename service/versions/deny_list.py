"""The candidates that operators withdraw while a version serves them. Versions stay as they were
loaded, and refer to these objects, which change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.stores.overlay import StoreSnapshot
from bundle.stores.reader import CandidateStore
from bundle.tables.id_values import distinct, int64_of

_SEARCHES_PER_MASK = 32
"""Number of searches of one state of an index after which it pays to mark the denied candidates in
a mask over all of them: the mask costs one pass, and saves a look-up in each later search.
"""


class DenyList:
    """Candidates of one store that operators withdrew: replaced as a whole while the store is
    served. All states of a store that changes share it.

    Attributes:
      ids: The ids of the deny list, of which the store may lack some.
      positions: [d] uint32, ascending, in the store as it was loaded.
    """

    def __init__(self) -> None:
        """Creates a list that denies nothing."""
        self.ids: tuple[str, ...] = ()
        self.positions: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._keys: NDArray[Any] = np.empty(0, object)
        self._texts: frozenset[str] = frozenset()
        self._changed: StoreSnapshot | None = None
        self._withdrawn = Withdrawn()
        self._lock = Lock()

    def replace(
        self, ids: tuple[str, ...], store: CandidateStore | StoreSnapshot, id_dtype: str
    ) -> None:
        """Denies the candidates that have one of these ids, and no others.

        Args:
          ids: The ids as texts.
          store: The store as it was loaded.
          id_dtype: The dtype of the ids of the store.
        """
        with self._lock:
            if ids == self.ids:
                return
            # One deny list serves all corpora of a model, of which another may have the other ids.
            keys, _ = ids_among(ids, id_dtype)
            self.ids = ids
            self._keys = keys
            self._texts = frozenset(ids)
            self.positions = _ascending(store.positions(keys))
            if self._changed is not None:
                changed = _ascending(self._changed.positions(keys))
                self._withdrawn.added = changed[changed >= self._changed.base_size]

    def begin(self, store: StoreSnapshot) -> Withdrawn:
        """Returns the withdrawn candidates of a store with its changes so far, if their positions
        are new; `follow` adds to them from now on.
        """
        with self._lock:
            self._withdrawn = Withdrawn()
            self._changed = store
            if self.ids:
                positions = _ascending(store.positions(self._keys))
                self._withdrawn.added = positions[positions >= store.base_size]
            return self._withdrawn

    def follow(self, store: StoreSnapshot, ids: NDArray[Any], positions: NDArray[np.int64]) -> None:
        """Denies candidates that were added to the store, if their ids are on the deny list.

        Args:
          store: The store as it is now.
          ids: The ids of the candidates that were added.
          positions: The positions of these candidates, ascending, and behind those of all others.
        """
        with self._lock:
            self._changed = store
            if self._texts and ids.size:
                is_denied = [str(key) in self._texts for key in ids.tolist()]
                denied = positions[is_denied].astype(np.uint32)
                if denied.size:
                    self._withdrawn.added = np.concatenate([self._withdrawn.added, denied])


class Withdrawn:
    """The candidates that no request may find in the states of a store whose positions are alike.

    Attributes:
      added: [d] uint32 positions, ascending, of denied candidates among those that were added or
        replaced since; includes the former positions of candidates that were replaced.
    """

    def __init__(self) -> None:
        """Creates the candidates of a store to which none was added."""
        self.added: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._latest: tuple[Any, Any, StoreSnapshot, int, NDArray[Any]] | None = None

    def positions(
        self, store: CandidateStore | StoreSnapshot, denied: NDArray[np.uint32]
    ) -> NDArray[Any]:
        """Returns the positions that no request may find now in a state of the store, [m] uint32,
        ascending: denied ones, and those whose candidates were replaced, were deleted or have
        expired.

        Args:
          store: The state of the store.
          denied: The positions of its deny list.
        """
        if not isinstance(store, StoreSnapshot):
            return denied
        added = self.added
        expired = store.expiries.expired(time.time())
        if not (store.ended.size or added.size or expired.size):
            return denied

        # Compared by identity: a deny list is replaced as a whole, and so are its positions.
        if self._latest is not None:
            latest_denied, latest_added, latest_store, expired_count, unavailable = self._latest
            is_same = latest_denied is denied and latest_added is added and latest_store is store
            if is_same and expired_count == expired.size:
                return unavailable
        unavailable = store.ended
        if denied.size or added.size or expired.size:
            further = distinct(np.concatenate([denied, added, expired]))
            further = further[~np.isin(further, unavailable, assume_unique=True)]
            # Few candidates are denied: to sort all of them for each change would take longer.
            unavailable = np.insert(unavailable, unavailable.searchsorted(further), further)
        self._latest = (denied, added, store, expired.size, unavailable)
        return unavailable


class DeniedParts:
    """The positions that no request may find in an index whose candidates changed.

    Attributes:
      positions: The positions in the whole index, ascending.
      by_part: The positions in the bundle, and those behind it, counted from there.
    """

    def __init__(
        self,
        positions: NDArray[np.uint32],
        by_part: tuple[NDArray[np.uint32], NDArray[np.uint32]],
        sizes: tuple[int, int],
    ) -> None:
        """Stores the positions; `sizes` are the numbers of all positions of the two parts."""
        self.positions = positions
        self.by_part = by_part
        self._sizes = sizes
        self._searches_left = _SEARCHES_PER_MASK
        self._masks: Sequence[NDArray[np.bool_] | None] = [None, None]

    def masks(self) -> Sequence[NDArray[np.bool_] | None]:
        """Returns which candidates of each part are denied, [size]; None: none is, or they are not
        marked yet. Called for each search.
        """
        # To mark them costs a pass over all candidates, which pays if many searches follow before
        # the next change.
        self._searches_left -= 1
        if not self._searches_left:
            masks: list[NDArray[np.bool_] | None] = []
            for size, positions in zip(self._sizes, self.by_part, strict=True):
                mask = None
                if positions.size:
                    mask = np.zeros(size, bool)
                    mask[positions] = True
                masks.append(mask)
            self._masks = masks
        return self._masks


def ids_among(texts: Sequence[str], id_dtype: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Returns those of m texts that are ids of a corpus, as it holds them, and which these are.

    Args:
      texts: The texts.
      id_dtype: The dtype of the ids of the corpus.

    Returns:
      [i] int64 or object holding str, in the order of the texts, and [m] bool, true for i texts.
    """
    if id_dtype != "int64":
        return np.array(texts, object), np.ones(len(texts), bool)
    numbers = [*map(int64_of, texts)]
    is_id = np.array([number is not None for number in numbers], bool)
    return np.array([number for number in numbers if number is not None], np.int64), is_id


def _ascending(positions: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Returns the positions of known candidates, distinct."""
    return distinct(positions[positions >= 0]).astype(np.uint32)
