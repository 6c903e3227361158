"""Changes that a model cannot take: what senders get, and that nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.errors import InvalidArgument, NotFound, ServiceError, TooLarge
from tests.bundles.small import write_small_bundle
from tests.units.service.changes.making import candidate, change
from tests.units.service.running import RunningService

ROW = {"id": 3, "vector": [1.0] * 8}
USERS = {"table": "users"}


@pytest.fixture(scope="module")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, users=True)
    service = RunningService(root, max_changed_candidates=3, max_changed_rows=3)
    yield service
    service.close()


def without(name: str) -> dict[str, Any]:
    """Returns a candidate that lacks a feature."""
    item = candidate(1)
    del item["features"][name]
    return item


def with_feature(name: str, value: Any) -> dict[str, Any]:
    item = candidate(1)
    item["features"][name] = value
    return item


CASES: list[tuple[str, list[Any], dict[str, Any], type[ServiceError], str]] = [
    ("rows/upsert", [], USERS, InvalidArgument, "items is empty; at least one item"),
    ("rows/upsert", [5], USERS, InvalidArgument, "items[0] is 5; a JSON object was expected"),
    ("rows/upsert", [{"vector": [1]}], USERS, InvalidArgument, "items[0] has no id"),
    (
        "rows/upsert",
        [{**ROW, "vectr": [1]}],
        USERS,
        InvalidArgument,
        "items[0] has the unknown field 'vectr'; one of id, vector, sequence was expected; did",
    ),
    ("rows/upsert", [ROW], {"table": "user"}, NotFound, "has no table 'user'; did you mean"),
    ("rows/upsert", [ROW], {"feature": "usr"}, NotFound, "has no feature 'usr'; did you mean"),
    (
        "rows/upsert",
        [ROW],
        {"feature": "user", "table": "movies"},
        InvalidArgument,
        "table is 'movies'; feature 'user' reads 'users'",
    ),
    ("rows/upsert", [ROW], {"feature": "hour"}, InvalidArgument, "is dense: it has no table"),
    (
        "rows/upsert",
        [{"id": 50, "vector": [1] * 8}],
        USERS,
        InvalidArgument,
        "id 50 has no row in table 'users' of 50 rows",
    ),
    (
        "rows/upsert",
        [{"id": -1, "vector": [1] * 8}],
        USERS,
        InvalidArgument,
        "id -1 has no row in table 'users'",
    ),
    (
        "rows/upsert",
        [{"id": 7, "vector": [1] * 8}],
        {"feature": "movie"},
        InvalidArgument,
        "id 7 has no row in table 'movies'",
    ),
    (
        "rows/upsert",
        [{"id": "a", "vector": [1] * 8}],
        USERS,
        InvalidArgument,
        "ids, which are rows of the table",
    ),
    ("rows/upsert", [ROW, ROW], USERS, InvalidArgument, "id 3 comes twice, at 0 and 1"),
    (
        "rows/upsert",
        [{"id": 3, "vector": [1] * 7}],
        USERS,
        InvalidArgument,
        "vectors has shape [1, 7]; [1, 8] was expected",
    ),
    (
        "rows/upsert",
        [ROW, {"id": 4, "vector": [1] * 7}],
        USERS,
        InvalidArgument,
        "items[1].vector has 7 numbers; a list of 8 as in the first item was expected",
    ),
    (
        "rows/upsert",
        [{"id": 3, "vector": [1e39] * 8}],
        USERS,
        InvalidArgument,
        "vector holds 1e+39; a number within float32 was expected",
    ),
    (
        "rows/upsert",
        [{"id": 3, "vector": "1 2 3"}],
        USERS,
        InvalidArgument,
        "items[0].vector is '1 2 3'; a list of numbers was expected",
    ),
    (
        "rows/upsert",
        [{"id": row, "vector": [1] * 8} for row in range(4)],
        USERS,
        TooLarge,
        "table 'users' would have 4 changed rows; at most 3 are accepted (max_changed_rows)",
    ),
    (
        "rows/upsert",
        [{"id": 1, "vector": [1] * 4}],
        {"table": "genres"},
        TooLarge,
        "would have 8 changed entries, whose vectors depend on these rows; at most 3 are",
    ),
    (
        "rows/upsert",
        [{**ROW, "sequence": 1}, {"id": 4, "vector": [1] * 8}],
        USERS,
        InvalidArgument,
        "items[1] has no sequence; the same as in other items was expected",
    ),
    (
        "rows/upsert",
        [{**ROW, "sequence": -1}],
        USERS,
        InvalidArgument,
        "items[0].sequence is -1; an integer from 0 was expected",
    ),
    (
        "rows/upsert",
        [ROW],
        {**USERS, "stream": "users"},
        InvalidArgument,
        "stream and offset are accepted only together",
    ),
    (
        "candidates/upsert",
        [candidate(1)],
        {"corpus": "movie"},
        NotFound,
        "has no corpus 'movie'; did you mean 'movies'?",
    ),
    (
        "candidates/upsert",
        [candidate("a")],
        {},
        InvalidArgument,
        "ids: ",
    ),
    (
        "candidates/upsert",
        [without("year")],
        {},
        InvalidArgument,
        "feature 'year' was not sent in features; store 'movies' holds it",
    ),
    (
        "candidates/upsert",
        [with_feature("yeer", 1)],
        {},
        InvalidArgument,
        "features has the unknown name 'yeer'; a feature of store 'movies' was expected; did",
    ),
    (
        "candidates/upsert",
        [with_feature("genres", [1])],
        {},
        InvalidArgument,
        "features.genres holds 1; a string was expected",
    ),
    (
        "candidates/upsert",
        [with_feature("movie", 7)],
        {},
        InvalidArgument,
        "features.movie: id 7 is not in table 'movies'",
    ),
    (
        "candidates/upsert",
        [{**candidate(1), "attributes": {"titel": "x"}}],
        {},
        InvalidArgument,
        "attributes has the unknown name 'titel'; an attribute of store 'movies' was expected; did",
    ),
    (
        "candidates/upsert",
        [{**candidate(1), "attributes": {"year": "x"}}],
        {},
        InvalidArgument,
        "attributes.year holds 'x'; int64 or null was expected",
    ),
    (
        "candidates/upsert",
        [candidate(1), {**candidate(2), "attributes": {}}],
        {},
        InvalidArgument,
        "items[1].attributes has no 'title'; the same as in other items was expected; null",
    ),
    (
        "candidates/upsert",
        [candidate(1, vectors={"movie": [1] * 8})],
        {},
        InvalidArgument,
        "vectors has the unknown name 'movie'; an index of corpus 'movies' was expected; did you",
    ),
    (
        "candidates/upsert",
        [candidate(1, vectors={"movies": [1] * 7})],
        {},
        InvalidArgument,
        "vectors.movies has shape [1, 7]; [1, 8] was expected",
    ),
    (
        "candidates/upsert",
        [candidate(1, expires_s="soon")],
        {},
        InvalidArgument,
        "items[0].expires_s is 'soon'; Unix seconds or null was expected",
    ),
    (
        "candidates/upsert",
        [candidate(key) for key in range(4)],
        {},
        TooLarge,
        "would have 4 changed entries; at most 3 are accepted (max_changed_candidates)",
    ),
    (
        "candidates/attributes",
        [{"id": 1000, "attributes": {}}],
        {},
        InvalidArgument,
        "attributes is empty; at least one was expected",
    ),
    (
        "candidates/delete",
        [{"id": 1000, "features": {}}],
        {},
        InvalidArgument,
        "items[0] has the unknown field 'features'",
    ),
    (
        "contexts/upsert",
        [{"id": 1, "features": {"user": 3}}],
        {},
        InvalidArgument,
        "feature 'liked' was not sent in features; store 'users' holds it",
    ),
]


@pytest.mark.parametrize(
    ("path", "items", "options", "error", "message"),
    CASES,
    ids=[f"{path}: {message[:40]}" for path, _, _, _, message in CASES],
)
def test_a_change_that_does_not_fit_is_rejected_whole(
    service: RunningService,
    path: str,
    items: list[Any],
    options: dict[str, Any],
    error: type[ServiceError],
    message: str,
) -> None:
    with pytest.raises(error) as caught:
        change(service, path, *items, **options)
    assert message in str(caught.value)
    (violation,) = caught.value.violations
    assert violation.field in str(caught.value)
    assert service.current().changes == 0
    assert not service.worker.changes.path_of("movies").exists()
