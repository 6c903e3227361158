"""What is planned once for all requests of a shape: the numbers and names of each are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import Rejected, responds
from tests.units.service.running import RunningService

Body = dict[str, Any]
Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
USER: Body = {"context": {"user": 2}}
LIST: Body = {"ids": [1000, 1007]}

CASES: list[tuple[str, Body, Body, str]] = [
    ("retrieve", {**USER, "k": 2}, {"k": 100_000}, "k is 100000"),
    ("retrieve", {**USER, "recall": 0.9}, {"recall": 2.0}, "recall is 2.0"),
    ("retrieve", {**USER, "pool_size": 20, "offset": 2}, {"offset": 15}, "offset is 15"),
    (
        "retrieve",
        {**USER, "crowding": {"year": 2}},
        {"crowding": {"year": 0}},
        "crowding.year is 0",
    ),
    ("retrieve", {"vectors": [[1.0] * 8]}, {"vectors": [[1.0] * 7]}, "vectors has shape [1, 7]"),
    ("retrieve", USER, {"context": {"usr": 2}}, "did you mean 'user'?"),
    ("recommend", {**USER, "k": 2}, {"diversity": 2.0}, "diversity is 2.0"),
    (
        "recommend",
        {**USER, "sources": [{"index": "movies", "min_count": 1}]},
        {"sources": [{"index": "movies", "min_count": 11}]},
        "min_count of all sources is 11",
    ),
    ("rank", {**USER, "candidate_ids": [1000]}, {"candidate_ids": [3]}, "candidate 3 is not in"),
    ("rank", {**USER, "candidate_ids": [1000]}, {"k": -1}, "k is -1"),
]


@pytest.mark.parametrize(("call", "body", "changed", "message"), CASES)
def test_request_is_checked_although_one_of_its_shape_was_served(
    write: Write, serve: Serve, call: str, body: Body, changed: Body, message: str
) -> None:
    write()
    service = serve()
    expected = responds(service, call, **body)
    with pytest.raises(Rejected) as rejected:
        responds(service, call, **{**body, **changed})
    assert message in rejected.value.message
    assert responds(service, call, **body) == expected
