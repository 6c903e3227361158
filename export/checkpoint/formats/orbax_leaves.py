"""The leaves of an Orbax item: its tree is told in `_METADATA`, JSON of some 300 bytes for each array.

    {"tree_metadata": {"('params', 'a')": {"key_metadata": [{"key": "params", ...}, {"key": "a", ...}],
                                           "value_metadata": {"value_type": "jax.Array", ...}}, ...}, "use_zarr3": ...}

Source: Orbax 0.12.8, checkpoint/_src/metadata/tree.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import NamedTuple

import orjson

DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}
"""tensorstore's name of the format, by the file that describes an array."""
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")
_HEAD = re.compile(rb'\s*\{\s*"tree_metadata"\s*:\s*\{')
_NEXT = re.compile(rb'\}\s*\}\s*(,)\s*"')
"""Ends a leaf that another one follows, or lies within a name or deeper, where no valid JSON would end."""
_PIECE_BYTES = 256 << 10


class Leaf(NamedTuple):
    """A leaf of the tree by its dotted path, the file that describes its array, and whether it must have one."""

    path: str
    file: str
    is_array: bool


class Tree(NamedTuple):
    """Leaves that hold something, and whether the writer stored chunks that hold nothing but the fill value."""

    leaves: list[Leaf]
    stores_fill: bool


def read_tree(data: bytes) -> Tree:
    """Reads the leaves of a tree, a piece of its JSON at a time: as a whole, 10^5 leaves would take 0.4 GiB.

    Raises:
      ValueError: it is no JSON, or no tree.
    """
    for cuts in (_cuts(data), []):  # what cannot be read in pieces is perhaps only laid out in another way
        try:
            return _read(data, cuts)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            told = str(problem)
    raise ValueError(f"its _METADATA holds no tree of arrays ({told})")


def listed_leaves(names: Iterable[str]) -> list[Leaf]:
    """Returns the arrays that a store has, where no tree tells them."""
    keys = (name.rpartition("/") for name in names)
    return [Leaf(path, file, is_array=True) for path, _, file in keys if file in DRIVERS]


def _cuts(data: bytes) -> list[int]:
    """Returns where the leaves begin and where each piece ends, behind a comma; none of what Orbax would not write."""
    head = _HEAD.match(data)
    cuts = [head.end()] if head else []
    while cuts and (found := _NEXT.search(data, cuts[-1] + _PIECE_BYTES)) is not None:
        cuts.append(found.end(1))
    return cuts


def _read(data: bytes, cuts: list[int]) -> Tree:
    page = orjson.loads(data[: cuts[0]] + data[cuts[-1] :] if cuts else data)
    pieces = (orjson.loads(b"{%b}" % data[first : end - 1]) for first, end in pairwise(cuts))
    file = "zarr.json" if page.get("use_zarr3") else ".zarray"
    found: list[Leaf] = []
    for leaves in chain(pieces, [page["tree_metadata"]]):
        for leaf in leaves.values():
            told = leaf["value_metadata"]
            if not told.get("skip_deserialize"):
                path = ".".join([str(step["key"]) for step in leaf["key_metadata"]])
                found.append(Leaf(path, file, told.get("value_type") in _ARRAYS))
    return Tree(found, bool(page.get("store_array_data_equal_to_fill_value")))
