"""Inputs, features and towers that recipes of several models have."""

from __future__ import annotations

from typing import Any

ID = {"dtype": "int64"}
FLOAT = {"dtype": "float32"}
STRING = {"dtype": "string"}
RAGGED = {"dtype": "int64", "kind": "ragged"}
SPARSE = {"dtype": "int64", "kind": "sparse"}
PAIR = {"user": ID, "item": ID}
CANDIDATE = {"role": "candidate"}
QUERY = {"tower": {"role": "query"}}
"""A tower that returns one tensor."""
Part = dict[str, Any]


def several(dtype: str, *shape: int) -> Part:
    """Returns an input of several values for each example."""
    return {"dtype": dtype, "shape": list(shape)}


def weights(of: str, kind: str) -> Part:
    """Returns an input of weights."""
    return {"dtype": "float32", "kind": kind, "weights_for": of}


def candidates(*names: str) -> Part:
    """Returns features of candidates."""
    return dict.fromkeys(names, CANDIDATE)


def query(*outputs: str) -> Part:
    """Returns a query tower, whose vector is the first of its outputs."""
    return {"tower": {"role": "query", "outputs": _named(outputs), "result": outputs[0]}}


def ranking(*outputs: str, **options: Any) -> Part:
    """Returns a ranking tower, whose score is the first of its outputs; without outputs it returns
    one tensor.
    """
    result = {"result": outputs[0]} if outputs else {}
    return {"ranking": {"role": "ranking", "outputs": _named(outputs), **result, **options}}


def two_towers() -> Part:
    """Returns a query and a candidate tower over one call."""
    return {
        "query": {"role": "query", "outputs": {"vector": "query"}},
        "candidate": {"role": "candidate", "outputs": {"vector": "candidate"}},
    }


def method(name: str, *inputs: str, role: str = "query") -> Part:
    """Returns a tower that is called as the method that it calls."""
    return {name: {"role": role, "call": name, "inputs": list(inputs)}}


def _named(outputs: tuple[str, ...]) -> dict[str, str]:
    return {name: name for name in outputs}
