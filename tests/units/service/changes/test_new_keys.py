"""Tables of dynamic keys take new keys while they are served, as if they had been exported with
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.changes.log import recover
from service.engine.calls import EmbeddingRequest
from service.errors import InvalidArgument, TooLarge
from tests.bundles.small import USERS, SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.keyed import (
    KEYS,
    MISSING,
    Array,
    KeyedBundles,
    keyed_features,
    looked_up,
    responses,
    set_rows,
)
from tests.units.service.changes.making import TARGET, candidate, change, nearest
from tests.units.service.running import RunningService, column, flip

Serve = Callable[..., RunningService]


@pytest.fixture
def rebuilt(small_towers: Path, tmp_path: Path) -> Iterator[Callable[..., RunningService]]:
    """Serves a bundle that was written with further keys and other vectors."""
    services: list[RunningService] = []

    def serve(small: SmallBundle, vectors: dict[str, dict[int, Array]]) -> RunningService:
        keys = {name: [*stored.tolist()] for name, stored in KEYS.items()}
        tables = {name: [*small.tables[name]] for name in KEYS}
        for name, by_key in vectors.items():
            for key, vector in by_key.items():
                if key not in keys[name]:
                    keys[name].append(key)
                    tables[name].append(vector)
                tables[name][keys[name].index(key)] = vector
        bundles = KeyedBundles(tmp_path / "rebuilt", small_towers)
        bundles.write(
            keys={name: np.array(by_row) for name, by_row in keys.items()},
            tables={name: np.array(rows, np.float32) for name, rows in tables.items()},
        )
        services.append(RunningService(bundles.root))
        return services[-1]

    yield serve
    for service in services:
        service.close()


def test_new_keys_are_read_by_every_call_as_those_of_a_rebuild(
    bundles: KeyedBundles, serve: Serve, rebuilt: Callable[..., RunningService]
) -> None:
    small = bundles.write()
    service = serve()
    random = np.random.default_rng(5)
    items = [candidate(9000, movie=77), candidate(9001, movie=1000), candidate(MISSING, MISSING)]
    change(service, "candidates/upsert", *items)
    before = responses(service, small)

    vectors: dict[str, dict[int, Array]] = {"users": {}, "movies": {}}
    keys = {"users": [7, 2**40, 100_000, 3], "movies": [77, MISSING, 1000, 78]}
    for _ in range(12):
        name, feature = [("users", "user"), ("movies", "movie")][random.integers(2)]
        changed = random.permutation(keys[name])[: random.integers(1, 4)].tolist()
        new = {key: random.standard_normal(8).astype(np.float32) for key in changed}
        set_rows(service, feature, new)
        vectors[name] |= new
    for name, feature in (("users", "user"), ("movies", "movie")):
        new = {keys[name][0]: random.standard_normal(8).astype(np.float32)}
        set_rows(service, feature, new)
        vectors[name] |= new

    expected = rebuilt(small, vectors)
    change(expected, "candidates/upsert", *items)
    changed_responses = responses(service, small)
    assert changed_responses != before
    # The index of the bundle has the vector of a candidate whose row has changed.
    change(expected, "candidates/upsert", stored_candidate(small, 1000))
    for response, wanted in zip(changed_responses, responses(expected, small), strict=True):
        assert response == wanted


def stored_candidate(small: SmallBundle, key: int) -> dict[str, Any]:
    position = small.ids.tolist().index(key)
    features = {
        "movie": key,
        "genres": [*small.genres[position]],
        "year": float(small.years[position]),
    }
    return {"id": key, "features": features, "attributes": {"title": small.titles[position]}}


def test_a_candidate_is_embedded_anew_when_its_key_gets_a_row(
    bundles: KeyedBundles, serve: Serve
) -> None:
    small = bundles.write()
    service = serve()
    position = small.ids.tolist().index(MISSING)
    row = small.tables["movies"][position + 1]
    set_rows(service, "movie", {MISSING: 2 * row, 6: row})
    set_rows(service, "movie", {MISSING: row})
    index = service.current().indexes["movies"].added
    assert index is not None
    np.testing.assert_allclose(index.vectors[-1], small.vectors[position], rtol=1e-5)
    assert service.current().corpora["movies"].entry.size == 40


def test_other_workers_and_a_restarted_one_know_the_same_keys(
    bundles: KeyedBundles, serve: Serve
) -> None:
    bundles.write()
    services = [serve(), serve()]
    for number in range(6):
        vector = np.full(8, number, np.float32)
        set_rows(services[number % 2], "user", {100 + 3 * number: vector, 7: vector})
    until(lambda: [service.current().changes for service in services] == [6, 6])
    keys = [100 + 3 * number for number in range(6)]
    expected = [[float(number)] * 8 for number in (*range(6), 5)]
    for service in (*services, serve()):
        assert looked_up(service, *keys, 7) == ([True] * 7, expected)
        (version,) = service.worker.changes.status("movies")["versions"]
        assert version["changed"] == {"table users": 7, "new rows of table users": 7}


def test_a_request_sees_a_key_and_its_vector_or_neither(
    bundles: KeyedBundles, serve: Serve
) -> None:
    small = bundles.write()
    service = serve()
    with service.worker.versions.acquire("movies") as before:
        set_rows(service, "user", {7: np.ones(8)})
        rows, _ = before.reader.rows("user", {"user": column(7)}, 1)
        assert rows.tolist() == [-1]
    unknown = small.tables["users"][0].tolist()
    assert looked_up(service, 7, 8) == ([True, False], [[1.0] * 8, unknown])


def test_a_new_key_is_not_counted_as_out_of_vocabulary(bundles: KeyedBundles, serve: Serve) -> None:
    bundles.write()
    service = serve()

    def unknown_count() -> float:
        labels = {"model": "movies", "feature": "user"}
        return service.value("rowcast_oov_ids_total", **labels)

    call = EmbeddingRequest(TARGET, "query", {"user": column(7, 8)})
    service.execute(call, "embed")
    assert unknown_count() == 2
    set_rows(service, "user", {7: np.ones(8)})
    service.execute(call, "embed")
    assert unknown_count() == 3


def test_another_version_drops_new_keys_with_their_vectors(
    bundles: KeyedBundles, serve: Serve
) -> None:
    bundles.write()
    service = serve()
    set_rows(service, "user", {7: np.ones(8)})
    bundles.write(version=2)
    service.scan()
    assert service.current().version == 2
    assert looked_up(service, 7)[0] == [False]
    versions = service.worker.changes.status("movies")["versions"]
    dropped = {entry["version"]: entry["dropped"] for entry in versions}
    assert dropped[2] == {"the vectors belong to another version": 1}
    set_rows(service, "user", {7: np.full(8, 2)})
    assert looked_up(service, 7) == ([True], [[2.0] * 8])


def test_keys_follow_one_another_in_a_log_that_was_recovered(
    bundles: KeyedBundles, serve: Serve
) -> None:
    bundles.write()
    service = serve()
    path = service.worker.changes.path_of("movies")
    sizes = []
    for key in (7, 8, 10):
        set_rows(service, "user", {key: np.full(8, key)})
        sizes.append(path.stat().st_size)
    flip(path, sizes[0] + 40)
    recover(path, "movies")
    restarted = serve()
    assert looked_up(restarted, 7, 8, 10)[0] == [True, False, True]
    set_rows(restarted, "user", {8: np.zeros(8)})
    assert looked_up(restarted, 7, 8, 10)[1] == [[7.0] * 8, [0.0] * 8, [10.0] * 8]


@pytest.mark.parametrize(
    ("feature", "table", "key", "error", "message"),
    [
        ("user", "", -5, InvalidArgument, "ids holds -5; a new key of table 'users' from 0"),
        ("user", "", 999, InvalidArgument, "ids holds id 999, which fills lists up in feature"),
        ("user", "", "a", InvalidArgument, "ids, which are keys of the table: 'a' is no integer"),
        ("user", "", 2**63, InvalidArgument, "9223372036854775808"),
        ("", "users", USERS, InvalidArgument, "id 50 has no row in table 'users' of 50 rows; to"),
        ("history", "", 5, InvalidArgument, "whose ids are keys, such as 'movie'"),
        ("", "genres", 6, InvalidArgument, "its number of rows is fixed: export it with more"),
    ],
)
def test_keys_that_a_table_cannot_get_are_rejected(
    bundles: KeyedBundles,
    serve: Serve,
    feature: str,
    table: str,
    key: Any,
    error: type[Exception],
    message: str,
) -> None:
    bundles.write(features=keyed_features(padding=999))
    service = serve()
    dims = {"genres": 4}
    item = {"id": key, "vector": [1.0] * dims.get(table, 8)}
    with pytest.raises(error) as caught:
        change(service, "rows/upsert", item, table=table, feature=feature)
    assert message in str(caught.value)
    assert service.current().changes == 0


def test_new_keys_are_changed_rows_to_the_limit(bundles: KeyedBundles, serve: Serve) -> None:
    bundles.write()
    service = serve(max_changed_rows=3)
    set_rows(service, "user", {7: np.ones(8), 3: np.ones(8)})
    set_rows(service, "user", {7: np.zeros(8), 8: np.zeros(8), 3: np.zeros(8)})
    with pytest.raises(TooLarge, match="would have 4 changed rows; at most 3"):
        set_rows(service, "user", {7: np.ones(8), 10: np.ones(8)})
    assert looked_up(service, 7, 8, 10) == (
        [True, True, False],
        [[0.0] * 8, [0.0] * 8, looked_up(service, 1)[1][0]],
    )
    assert nearest(service, np.ones((1, 8), np.float32)).ids.size == 5
