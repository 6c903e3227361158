"""Lists that compiled code takes out of a JSON body are those that the library reads, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle import native
from service.engine.requests import Target
from service.errors import InvalidArgument
from service.wire import json_bodies
from service.wire.operations import OPERATIONS

pytestmark = pytest.mark.skipif(native.plain_lists is None, reason=f"it was not compiled: {native.MISSING}")

BLANKS = st.sampled_from(["", "", "", " ", "\n\t ", "\r", "\v"])
DIGITS = ["0", "-0", "00", "01", "-", "", "1e3", "1.5", "+1", "9" * 18, "9" * 19, "-" + "9" * 18, "1" * 40]
NUMBERS = st.integers(-300, 300).map(str) | st.integers(-(2**70), 2**70).map(str) | st.sampled_from(DIGITS)
WORDS = ["features", "context", "requests", "k", "a", "b", "", "größe", 'x\\"y', "\\", "features\\u0020", "fe\0"]
TEXTS = st.sampled_from(WORDS).map(lambda word: f'"{word}"')
ODD = st.sampled_from(["null", "true", "NaN", "]", "}", "[", "{", ",", '"', "//", "-Infinity"])


def spaced(items: list[tuple[str, str]], around: str) -> str:
    return around[0] + ",".join(before + item for item, before in items) + around[1]


def long(text: str) -> str:
    """Makes the items of a list many, as those that are taken are."""
    return f"[{','.join([text[1:-1]] * 64)}]"


def listed(values: st.SearchStrategy[str], around: str = "[]", most: int = 5) -> st.SearchStrategy[str]:
    return st.lists(st.tuples(values, BLANKS), max_size=most).map(lambda items: spaced(items, around))


def members(names: st.SearchStrategy[str], values: st.SearchStrategy[str], most: int = 5) -> st.SearchStrategy[str]:
    return listed(st.builds("{}{}:{}{}".format, names, BLANKS, BLANKS, values), "{}", most)


SHORT = listed(st.integers(-300, 300).map(str))
INTEGERS = SHORT | SHORT.map(long)
SCALARS = NUMBERS | TEXTS | ODD
NESTED = st.recursive(SCALARS, lambda inner: listed(inner) | members(TEXTS, inner), max_leaves=8)
VALUES = INTEGERS | listed(SCALARS) | listed(NUMBERS).map(long) | NESTED
SOUND = st.sampled_from(
    ["null", "1.5", '"x"', '"\\\\"', "[]", "[1.5,2]", '["]"]', '{"a":[1]}', "[[1,2],[3,4]]", "[1,true]"]
)
PLAIN = members(st.sampled_from(['"a"', '"b"', '"c"', '"größe"']), INTEGERS | SOUND)
FEATURES = members(TEXTS, INTEGERS | VALUES)
MANY = '{"many":[' + "7," * 500 + "7],"
"""Of so long a body all else may be passed over."""
DAMAGE = [b'"', b"\\", b"[", b"]", b"{", b"}", b",", b":", b"0", b" "]


@st.composite
def bodies(draw: st.DrawFn) -> str:
    features = draw(FEATURES | PLAIN)
    if draw(st.integers(0, 3)):
        features = MANY + features.removeprefix("{")
    names = st.sampled_from(['"context"', '"k"', '"candidates"'])
    others = draw(st.lists(st.builds("{}:{}".format, names | TEXTS, SOUND | INTEGERS | PLAIN | VALUES), max_size=3))
    at = draw(st.integers(0, len(others)))
    return "{" + ",".join([*others[:at], f'"features": {features}', *others[at:]]) + "}"


def plain(value: Any) -> Any:
    """Returns a value with lists in the place of arrays."""
    if isinstance(value, np.ndarray):
        assert value.dtype == np.int64
        assert value.ndim == 1
        return value.tolist()
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def told(read: Callable[[], Any]) -> Any:
    """Returns what a reader makes of a body, in a form that shows types and order, or why it refuses."""
    try:
        return repr(plain(read()))
    except InvalidArgument as problem:
        return str(problem)


def asked(name: str, body: bytes) -> Any:
    """Returns the request that a body asks, or why it is refused."""

    def one(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.tolist()
        if isinstance(value, dict):
            return {name: one(each) for name, each in value.items()}
        return tuple(map(one, value)) if isinstance(value, tuple) else value

    def read() -> Any:
        request, several = OPERATIONS[name].read_json(json_bodies.parse(body), Target())
        return {**{name: one(value) for name, value in vars(request).items() if name != "exclude"}, "several": several}

    return told(read)


def by_the_library(read: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bodies, "plain_lists", None)
        return read()


def assert_as_the_library(body: bytes) -> None:
    assert told(lambda: json_bodies.parse(body)) == by_the_library(lambda: told(lambda: json_bodies.parse(body)))
    for name in ("rank", "retrieve", "recommend", "embed", "lookup"):
        assert asked(name, body) == by_the_library(lambda name=name: asked(name, body))  # type: ignore[misc]


@settings(max_examples=1500)
@given(bodies() | VALUES)
def test_bodies_are_read_or_refused_as_by_the_library(body: str) -> None:
    assert_as_the_library(body.encode())


@settings(max_examples=1000)
@given(bodies(), st.data())
def test_damaged_bodies_are_read_or_refused_as_by_the_library(body: str, data: st.DataObject) -> None:
    damaged = bytearray(body.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        new = data.draw(st.binary(max_size=2) | st.sampled_from(DAMAGE))
        damaged[at : at + data.draw(st.integers(0, 3))] = new
    assert_as_the_library(bytes(damaged))
    assert_as_the_library(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


@given(st.lists(st.lists(st.integers(-(10**18) + 1, 10**18 - 1), min_size=64, max_size=70), min_size=1, max_size=5))
def test_long_lists_of_integers_are_taken(lists: list[list[int]]) -> None:
    assert native.plain_lists is not None
    sent = {f"f{number}": values for number, values in enumerate(lists)}
    for body in (orjson.dumps({"features": sent}), orjson.dumps({"features": sent}, option=orjson.OPT_INDENT_2)):
        split = native.plain_lists(body, "features")
        assert split is not None
        assert plain(split[0]) == sent
        assert orjson.loads(split[1]) == {"features": dict.fromkeys(sent, 0)}


def test_short_lists_are_left_to_the_library() -> None:
    assert native.plain_lists is not None
    body = {"features": {"long": list(range(64)), "short": list(range(63))}}
    split = native.plain_lists(orjson.dumps(body), "features")
    assert split is None  # half of it is passed over
    body["features"]["longer"] = list(range(640))
    split = native.plain_lists(orjson.dumps(body), "features")
    assert split is not None
    assert plain(split[0]) == {"long": list(range(64)), "longer": list(range(640))}
    assert orjson.loads(split[1]) == {"features": {"long": 0, "short": list(range(63)), "longer": 0}}


def test_a_body_of_which_much_is_passed_over_is_left_to_the_library() -> None:
    assert native.plain_lists is not None
    body = orjson.dumps({"requests": [{"a": "b"}] * 100, "features": {"a": list(range(100))}})
    assert native.plain_lists(body, "features") is None
    assert native.plain_lists(body[body.index(b"]") :], "features") is None
