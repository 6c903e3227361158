"""Filters: conditions on attributes, validated, then compiled to the candidates that meet all of
them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.tables import id_values
from bundle.tables.id_values import distinct
from runtime.exact import VectorBlock
from service.engine.calls import BOUNDS, Condition, Filter, Ids
from service.engine.names import name_hint, show_id
from service.errors import InvalidArgument
from service.versions.version import FilteredCorpus, LoadedIndex

Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]
_TRUTHS = {"false": 0, "true": 1}


@dataclass(frozen=True, eq=False)
class Matches:
    """The candidates that match a filter.

    Attributes:
      positions: [m] uint32, ascending.
      mask: [size] bool; None: not needed yet, as is the block.
      block: their vectors side by side, in the order of positions.
    """

    positions: NDArray[np.uint32]
    mask: Mask | None = None
    block: VectorBlock | None = None

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        vectors = None if self.block is None else self.block.vectors
        return 512 + sum(
            each.nbytes for each in (self.positions, self.mask, vectors) if each is not None
        )

    def masked(self, size: int) -> Matches:
        """Returns the same with a mask over `size` candidates."""
        return self if self.mask is not None else replace(self, mask=_mask(self.positions, size))

    def gathered(self, index: LoadedIndex) -> Matches:
        """Returns the same with a block of vectors of an index."""
        vectors = index.vectors.take(self.positions, axis=0, mode="clip")
        return replace(self, block=VectorBlock(vectors, index.entry.distance))


class Compiled(NamedTuple):
    """A filter with its key in the cache, what matches it, and whether the cache held it."""

    key: bytes
    matches: Matches
    again: bool


def compiled(index: LoadedIndex, sent: Filter) -> Compiled:
    """Returns the candidates that match a filter, from the cache where it holds them.

    Raises:
      InvalidArgument: an attribute is unknown or not filtered on, or a condition does not suit it.
    """
    conditions = {
        name: _checked(index.corpus, name, condition) for name, condition in sorted(sent.items())
    }
    text = repr([(name, _spelled(condition)) for name, condition in conditions.items()])
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    found: Matches | None = index.compiled.get(index, key)
    return Compiled(key, found or _matches(index, conditions), found is not None)


def tokens(sent: Filter | None) -> list[Ids | None]:
    """Returns the lists of tokens of a filter."""
    return [ids for condition in (sent or {}).values() for ids in (condition.allow, condition.deny)]


def is_among(positions: NDArray[Any], ascending: NDArray[Any]) -> Mask:
    """Returns which positions are among some that ascend."""
    if not ascending.size:
        return np.zeros(positions.size, bool)
    found: Mask = (
        ascending[np.minimum(ascending.searchsorted(positions), ascending.size - 1)] == positions
    )
    return found


def _checked(corpus: FilteredCorpus, name: str, condition: Condition) -> Condition:
    """Returns a condition with its tokens as the index of its attribute takes them."""
    where = f"filter.{name}"
    if name not in corpus.entry.attributes:
        hint = name_hint(name, corpus.entry.attributes, "has")
        raise InvalidArgument(
            f"filter: corpus {corpus.name!r} has no attribute {show_id(name)}; {hint}"
        )
    if name not in corpus.filters:
        raise InvalidArgument(
            f"{where}: {name!r} is not filtered on; name it in candidates.{corpus.name}.filters of "
            "the recipe and export again"
        )
    given = {part: value for part, value in vars(condition).items() if value is not None}
    if not given:
        raise InvalidArgument(
            f"{where} has no condition; allow, deny, ge, gt, le or lt was expected"
        )
    kind = corpus.filters[name].kind
    for part, value in given.items():
        if part in BOUNDS:
            if kind not in ("int64", "double"):
                raise InvalidArgument(
                    f"{where}.{part}: bounds apply to numbers; {name!r} is {kind}"
                )
            if not math.isfinite(value):
                raise InvalidArgument(f"{where}.{part} is {value}; a finite number was expected")
        elif kind == "double":
            raise InvalidArgument(
                f"{where}.{part}: {name!r} is double; ge, gt, le or lt was expected"
            )
        elif part == "allow" and not value.size:
            raise InvalidArgument(f"{where}.allow is empty; leave it out to allow all")
        else:
            given[part] = _tokens(kind, value, f"{where}.{part}")
    return Condition(**given)


def _tokens(kind: str, ids: Ids, where: str) -> Ids:
    """Returns tokens as the index of an attribute of this kind takes them."""
    if kind == "int64":
        try:
            return id_values.integers(where, ids)
        except FeatureError as problem:
            raise InvalidArgument(f"{where}: {problem.problem}") from problem
    for token in ids.tolist():
        if kind == "bool" and token not in _TRUTHS:
            raise InvalidArgument(f"{where} holds {show_id(token)}; true or false was expected")
        if not isinstance(token, str):
            raise InvalidArgument(f"{where} holds {show_id(token)}; a string was expected")
    if kind == "bool":
        return np.array([_TRUTHS[token] for token in ids.tolist()], np.int64)
    return ids.astype(object)  # none at all come as integers


def _spelled(condition: Condition) -> list[Any]:
    """Returns what is equal for conditions of the same tokens and bounds."""
    parts = vars(condition).values()
    return [sorted(set(part.tolist())) if isinstance(part, np.ndarray) else part for part in parts]


def _matches(index: LoadedIndex, conditions: Filter) -> Matches:
    corpus = index.corpus
    size = len(index.vectors)
    met = list[NDArray[np.uint32]]()
    denied = list[NDArray[np.uint32]]()
    for name, each in conditions.items():
        indexed = corpus.filters[name]
        if each.allow is not None:
            met.append(indexed.rows_of(each.allow))
        if any(getattr(each, bound) is not None for bound in BOUNDS):
            met.append(indexed.rows_between(each.ge, each.gt, each.le, each.lt))
        if each.deny is not None:
            denied.append(indexed.rows_of(each.deny))
    if (
        len(met) == 1 and not denied and met[0].size * 4 < size
    ):  # to sort them costs less than to search a mask
        return Matches(distinct(met[0]))
    mask = _mask(met[0], size) if met else np.ones(size, bool)
    for positions in met[1:]:
        mask &= _mask(positions, size)
    for positions in denied:
        mask[positions] = False
    return Matches(np.flatnonzero(mask).astype(np.uint32), mask)


def _mask(positions: NDArray[Any], size: int) -> Mask:
    mask = np.zeros(size, bool)
    mask[positions] = True
    return mask
