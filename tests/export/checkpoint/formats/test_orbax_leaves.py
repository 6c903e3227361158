from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from export.checkpoint.formats.orbax_leaves import Leaf, read_tree

PIECES = 3000
"""Leaves that make several pieces."""


def tree_of(paths: Iterable[tuple[str, ...]], **page: Any) -> dict[str, Any]:
    told = {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": [4, 2]}
    leaves = {
        str(path): {"key_metadata": [{"key": step, "key_type": 2} for step in path], "value_metadata": told}
        for path in paths
    }
    return {"tree_metadata": leaves, "use_zarr3": False, "store_array_data_equal_to_fill_value": True, **page}


def paths_of(tree: dict[str, Any], **layout: Any) -> list[str]:
    return sorted(leaf.path for leaf in read_tree(json.dumps(tree, **layout).encode()).leaves)


@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"indent": 1}, {"sort_keys": True}])
def test_leaves_of_a_large_tree_are_all_read_however_it_is_laid_out(layout: dict[str, Any]) -> None:
    tree = tree_of([("params", f"layer {number}", "kernel") for number in range(PIECES)])
    assert paths_of(tree, **layout) == sorted(f"params.layer {number}.kernel" for number in range(PIECES))


@pytest.mark.parametrize("name", ['}}, "', '"}}, "x', "}},\\", "]}}}", "κ}},"])
def test_names_that_read_like_the_end_of_a_leaf_are_names(name: str) -> None:
    tree = tree_of([(f"{number}", name) for number in range(PIECES)])
    layouts: tuple[dict[str, Any], ...] = {}, {"separators": (",", ":")}, {"ensure_ascii": False}
    for layout in layouts:
        assert paths_of(tree, **layout) == sorted(f"{number}.{name}" for number in range(PIECES))


def test_objects_behind_the_leaves_are_no_leaves() -> None:
    like_leaves = tree_of([("custom", str(number)) for number in range(PIECES)])["tree_metadata"]
    tree = tree_of([("a",)], custom_metadata=like_leaves)
    assert paths_of(tree) == ["a"]


def test_page_behind_many_leaves_tells_the_format() -> None:
    paths = [(str(number),) for number in range(PIECES)]
    told = read_tree(json.dumps(tree_of(paths, use_zarr3=True)).encode())
    assert told.stores_fill
    assert set(told.leaves) == {Leaf(str(number), "zarr.json", is_array=True) for number in range(PIECES)}
    assert not read_tree(json.dumps(tree_of(paths, store_array_data_equal_to_fill_value=False)).encode()).stores_fill


def test_leaf_that_holds_nothing_is_left_out() -> None:
    tree = tree_of([("a",), ("b",)])
    tree["tree_metadata"]["('a',)"]["value_metadata"] = {"value_type": "None", "skip_deserialize": True}
    assert paths_of(tree) == ["b"]


@pytest.mark.parametrize("cut", [1, 100_000, 400_000, -1])
def test_large_tree_that_is_cut_short_is_told(cut: int) -> None:
    text = json.dumps(tree_of([("params", str(number)) for number in range(PIECES)])).encode()
    with pytest.raises(ValueError, match="holds no tree"):
        read_tree(text[:cut])
