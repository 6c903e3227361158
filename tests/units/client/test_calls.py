"""What the calls reject before anything is sent: each error names the argument and what
was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rowcast_client import Column, InvalidArgument, calls

VIEWER = {"user": 5}
CASES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (calls.retrieve, (), {}, "exactly one of context"),
    (calls.retrieve, (VIEWER,), {"vectors": [1.0]}, "exactly one of context"),
    (calls.retrieve, (), {"ids": [1], "vectors": [1.0]}, "exactly one of context"),
    (
        calls.retrieve,
        (),
        {"vectors": [1.0], "context_ids": 7},
        r"exactly one of context \(or context_ids\)",
    ),
    (calls.retrieve, (5,), {}, "features must be a dict"),
    (calls.retrieve, (VIEWER,), {"k": "3"}, "k is '3'"),
    (calls.retrieve, (VIEWER,), {"k": 1.5}, "k is 1.5"),
    (calls.retrieve, (VIEWER,), {"k": True}, "k is True"),
    (calls.retrieve, (VIEWER,), {"k": 2**31}, "k is 2147483648"),
    (calls.retrieve, (VIEWER,), {"attributes": "title"}, "attributes is 'title'"),
    (calls.retrieve, (VIEWER,), {"attributes": None}, "attributes is None"),
    (calls.retrieve, (VIEWER,), {"attributes": [5]}, r"attributes is \[5\]"),
    (calls.retrieve, (VIEWER,), {"exclude_ids": 5}, "exclude_ids is 5"),
    (calls.retrieve, (VIEWER,), {"exclude_ids": [[1], 2]}, "exclude_ids mixes"),
    (calls.retrieve, (VIEWER,), {"model": 5}, "model is 5"),
    (calls.retrieve, (VIEWER,), {"index": 5}, "index is 5"),
    (calls.retrieve, (VIEWER,), {"version": "1"}, "version is '1'"),
    (calls.retrieve, (VIEWER,), {"version": -1}, "version is -1"),
    (calls.retrieve, (VIEWER,), {"label": 5}, "label is 5"),
    (
        calls.retrieve,
        (VIEWER,),
        {"version": 1, "label": "live"},
        "version is 1 and label is 'live'",
    ),
    (calls.retrieve, (), {"context_ids": 5.0}, "context_ids holds 5.0"),
    (calls.retrieve, (), {"context_ids": {5}}, "context_ids holds set"),
    (calls.recommend, (VIEWER,), {"formula": 5}, "formula is 5"),
    (calls.recommend, (VIEWER,), {"sources": "movies"}, "sources is 'movies': expected a list"),
    (
        calls.recommend,
        (VIEWER,),
        {"sources": ["movies"]},
        r"sources\[0\] is 'movies': expected a d",
    ),
    (
        calls.recommend,
        (VIEWER,),
        {"sources": [{"indx": ""}]},
        "expected a dict of name, index, ids",
    ),
    (calls.recommend, (VIEWER,), {"sources": [{"name": "a"}]}, "expected exactly one of index, "),
    (
        calls.recommend,
        (VIEWER,),
        {"sources": [{"index": "", "ids": [1]}]},
        "expected exactly one of index, ids, list",
    ),
    (
        calls.recommend,
        (VIEWER,),
        {"sources": [{"index": "", "max_count": -1}]},
        r"sources\[0\].max_count is -1: expected an integer from 0",
    ),
    (
        calls.recommend,
        (VIEWER,),
        {"sources": [{"index": 5}]},
        r"sources\[0\].index is 5: expected text",
    ),
    (
        calls.recommend,
        (VIEWER,),
        {"sources": [{"index": "", "fallback": "yes"}]},
        r"sources\[0\].fallback is 'yes': expected True or False",
    ),
    (calls.recommend, (VIEWER,), {"sources": [{"ids": 5}]}, r"sources\[0\].ids is 5: expected a"),
    (calls.rank, (5, [1]), {}, "features must be a dict"),
    (calls.rank, (VIEWER,), {}, "candidates are missing"),
    (calls.rank, (VIEWER, "abc"), {}, "candidate_ids is 'abc'"),
    (calls.rank, (VIEWER, [[1], [2]]), {}, "candidate_ids must be a list of ids for one context"),
    (
        calls.rank,
        ([VIEWER, VIEWER], [1, 2]),
        {},
        "candidate_ids must be a list of ids for one context",
    ),
    (calls.rank, (VIEWER, [1, [2]]), {}, "mixes ids and lists"),
    (calls.rank, ([VIEWER, VIEWER], [[1]]), {}, r"2 contexts were sent with \[1\] candidate_ids"),
    (
        calls.rank,
        (VIEWER, [1]),
        {"candidate_features": {"year": 5}},
        "feature 'year' is of type int",
    ),
    (calls.rank, ([VIEWER], [[1]]), {"candidate_features": 5}, "must be a list of dicts"),
    (calls.rank, ([VIEWER], [[1]]), {"candidate_features": [5]}, "must be a list of dicts"),
    (
        calls.rank,
        ([VIEWER], [[1]]),
        {"candidate_features": [{"year": 5}]},
        "'year' of the candidates of context 0 is of type int",
    ),
    (
        calls.rank,
        ([VIEWER], [[1, 2]]),
        {"candidate_features": [{"mood": "ab"}]},
        "'mood' of the candidates of context 0 is of type str",
    ),
    (
        calls.rank,
        ([VIEWER], [[1]]),
        {"candidate_features": [{"year": Column([1])}]},
        "context 0 is of type Column",
    ),
    (
        calls.rank,
        ([VIEWER, VIEWER], [[1], [2]]),
        {"candidate_features": [{"a": [1]}, {"b": [1]}]},
        "expected the same",
    ),
    (calls.embed, (VIEWER,), {"tower": 5}, "tower is 5"),
    (calls.lookup, (5, [1]), {}, "name of feature 5 is of type int"),
    (calls.lookup, ("user", 5), {}, "ids is 5"),
    (calls.lookup, ("user", [5]), {"not_found": True}, "not_found is True: expected 'error' or"),
    (calls.rank, (VIEWER, [1]), {"not_found": "ignore"}, "not_found is 'ignore'"),
    (calls.retrieve, (), {"ids": 5, "not_found": None}, "not_found is None"),
]


@pytest.mark.parametrize(("call", "arguments", "options", "message"), CASES)
def test_call_with_an_invalid_argument_names_it(
    call: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        call(*arguments, **options)


def test_call_takes_numbers_of_numpy_and_names_of_any_iterable() -> None:
    options: dict[str, Any] = {
        "k": np.int32(3),
        "attributes": {"title": "of a dict"},
        "exact": np.bool_(True),
    }
    request = calls.retrieve(VIEWER, **options).request
    assert (request.k, list(request.attributes), request.exact) == (3, ["title"], True)


def test_call_with_an_option_that_it_does_not_have_names_it() -> None:
    with pytest.raises(TypeError, match="'modle'"):
        calls.embed(VIEWER, modle="m")  # type: ignore[call-arg]
