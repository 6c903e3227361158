"""A candidate that cannot be scored is left out, and changes no bit of the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client

from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.changes import keyed
from tests.units.service.changes.making import (
    Rejected,
    candidate,
    change,
    ids_of,
    request,
    responds,
    status,
)
from tests.units.service.running import RunningService

ADDED = 9001
CONTEXTS = [{"user": 7, "hour": 9.0}, {"user": 8, "hour": 21.0}]
OLD = {"year": {"lt": 1950}}
BETWEEN = "log(50 - rating) + log(50 + rating)"
"""A formula that has no value for the ratings of some years."""


@pytest.mark.parametrize("has_shards", [False, True])
@pytest.mark.parametrize(
    ("poison", "formula", "reason"),
    [(keyed.MISSING, "", "features"), (ADDED, BETWEEN, "score")],
)
def test_candidate_that_cannot_be_scored_is_left_out(
    poison: int,
    formula: str,
    reason: str,
    has_shards: bool,
    write: Callable[..., SmallBundle],
    serve: Callable[..., RunningService],
) -> None:
    strict: dict[str, Any] = {}
    if poison == keyed.MISSING:
        strict = {"features": keyed.STRICT, "keys": keyed.KEYS}
    write(keep=60, partitions=2, **strict)
    options: dict[str, Any] = {}
    if has_shards:
        shards = [serve(shard=f"{number}/2", shard_min_bytes=1) for number in (1, 2)]
        options = {
            "shard_addresses": tuple([shard.grpc for shard in shards]),
            "shard_min_bytes": 1,
        }
    service = serve(**options)
    item = candidate(ADDED)
    if poison == ADDED:
        item["features"]["year"] = 1e6
    change(service, "candidates/upsert", item)

    sources: list[Any] = [{"ids": [poison, 1000, 1007]}, {"index": "movies"}]
    wanted: dict[str, Any] = {"k": 41, "pool_size": 60, "formula": formula}
    with Client(service.http, timeout_s=WAIT_S) as client:
        after = client.recommend(CONTEXTS, **wanted)
        excluded = client.recommend(CONTEXTS, exclude_ids=[[poison], [poison]], **wanted)
        merged = client.recommend(CONTEXTS[0], k=41, sources=sources, formula=formula)
        ranked = client.rank(CONTEXTS, candidate_ids=[[1000, poison], [1007]])
    for scored, expected in zip(after, excluded, strict=True):
        assert scored.ids.size == 40
        assert list(scored.ids) == list(expected.ids)
        np.testing.assert_array_equal(scored.scores, expected.scores)
    assert after.degraded
    assert "2 of 82 candidates are left out, because the" in after.degraded_reason
    assert not excluded.degraded
    assert poison not in merged[0].ids
    # A ranking was sent its id, and nothing of its features.
    failed = []
    ids = [1000, poison, 1007]
    if reason == "features":
        failed = [(0, 1)]
        ids = [1000, 1007]
    assert [(candidate.context, candidate.position) for candidate in ranked.failed] == failed
    assert np.concatenate([records.ids for records in ranked]).tolist() == ids
    assert service.value("rowcast_candidates_left_out_total", reason=reason) >= 3


def test_candidate_that_the_next_version_cannot_embed_is_in_no_response(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write(features=keyed.keyed_features(), keys=keyed.KEYS)
    service = serve()
    for key in (ADDED, 1000):
        change(service, "candidates/upsert", candidate(key, movie=77))
    movie_keys = np.append(keyed.KEYS["movies"], keyed.MISSING)
    tables = {"movies": np.random.default_rng(2).standard_normal((movie_keys.size, 8), np.float32)}
    keys = {**keyed.KEYS, "movies": movie_keys}
    write(version=2, features=keyed.STRICT, keys=keys, tables=tables)
    service.scan()
    until(lambda: service.current().version == 2)
    change(service, "candidates/attributes", {"id": ADDED, "attributes": {"year": 1901}})

    reason = "the vector of a candidate cannot be computed"
    for running in (service, serve()):
        assert not {ADDED, 1000} & ids_of(running)
        assert ids_of(running, filter=OLD) == set()
        with pytest.raises(Rejected, match=f"INVALID_ARGUMENT: .*{ADDED}"):
            responds(running, "rank", context=CONTEXTS[0], candidate_ids=[ADDED])
        (version,) = [entry for entry in status(running)["versions"] if entry["version"] == 2]
        assert version["dropped"] == {reason: {"items": 2, "first_id": 1000}}

    for key in (ADDED, 1000):
        change(service, "candidates/upsert", candidate(key))
    change(service, "candidates/attributes", {"id": ADDED, "attributes": {"year": 1901}})
    for running in (service, serve()):
        assert {ADDED, 1000} <= ids_of(running)
        assert ids_of(running, filter=OLD) == {ADDED}
        (version,) = [entry for entry in status(running)["versions"] if entry["version"] == 2]
        assert version["dropped"] == {}


def test_a_version_takes_what_it_has_of_changes_that_another_one_took(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    def old_ids(running: RunningService, version: int) -> dict[int, Any]:
        """Returns the titles of the candidates that the test has given a year."""
        url = f"{running.http}/v1/models/movies/versions/{version}:retrieve"
        body = {"vectors": [[1.0] * 8], "k": 1000, "filter": OLD, "attributes": ["title"]}
        found = request("POST", url, json=body).json()
        return dict(zip(found["ids"], found["attributes"]["title"], strict=True))

    def is_counted(running: RunningService) -> bool:
        return running.value("rowcast_changes_dropped", model="movies", reason=reason) == 3

    reason = "this version has no place for attribute studio"
    write(without=frozenset({"studio"}))
    service = serve(latest_versions=2)
    for key in (ADDED, 1000):
        change(service, "candidates/upsert", candidate(key, attributes={"year": 1901}))
    write(version=2)
    service.scan()
    until(lambda: service.current().version == 2)
    new = candidate(ADDED + 1, attributes={"year": 1902, "studio": "A", "title": "New"})
    change(service, "candidates/upsert", new)
    change(service, "candidates/attributes", {"id": 1007, "attributes": {"studio": "B"}})
    both = {"id": 1014, "attributes": {"studio": "C", "year": 1903}}
    change(service, "candidates/attributes", both)

    for running in (service, serve(latest_versions=2)):
        for version in (1, 2):
            titles = old_ids(running, version)
            assert {key: titles[key] for key in titles if key != 1014} == {
                ADDED: None,
                1000: None,
                ADDED + 1: "New",
            }
            assert 1014 in titles
        dropped = {entry["version"]: entry["dropped"] for entry in status(running)["versions"]}
        # The first one that a version comes across, in its order.
        first_id = dropped[1][reason].pop("first_id")
        assert first_id in {ADDED + 1, 1007}
        assert dropped == {1: {reason: {"items": 3}}, 2: {}}
        until(partial(is_counted, running))
