"""A multi-head ranker with a context store as a process: called over both transports, and what it
reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from rowcast_client import Client, InvalidArgument

from tests.bundles.small import STORED_USERS, SmallBundle, write_small_bundle
from tests.e2e.process import Process
from tests.units.service import reference

FORMULA = "watch^0.5 * exp(-0.1 * rating)"


@pytest.fixture(scope="module")
def small(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallBundle:
    root = tmp_path_factory.mktemp("heads") / "bundles"
    root.mkdir()
    return write_small_bundle(root, small_towers, parts=True, users=True, formula=FORMULA)


@pytest.fixture(scope="module")
def service(small: SmallBundle) -> Iterator[Process]:
    process = Process(small.directory.parents[1])
    process.event("ready")
    yield process
    process.kill()


def expected(small: SmallBundle, user: int, movie: int, **sent: object) -> dict[str, float]:
    places, weights, mood = STORED_USERS[user]
    liked = dict(zip(small.ids[list(places)].tolist(), weights, strict=True))
    return reference.ranked(small, movie, user, **{"liked": liked, "mood": mood, **sent})


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_stored_users_are_ranked_by_formulas_over_either_transport(
    small: SmallBundle, service: Process, transport: str
) -> None:
    movies = small.ids[:6].tolist()
    with Client(f"{transport}://127.0.0.1:{service.ports[transport]}") as client:
        by_default = client.rank(candidate_ids=movies, context_ids=7, heads=["watch", "rating"])[0]
        heads = [expected(small, 7, movie) for movie in movies]
        for name in ("watch", "rating"):
            np.testing.assert_allclose(
                by_default.heads[name], [head[name] for head in heads], 1e-4, 1e-4
            )
        wanted = [head["watch"] ** 0.5 * np.exp(-0.1 * head["rating"]) for head in heads]
        np.testing.assert_allclose(by_default.scores, wanted, 1e-4, 1e-4)
        own = client.rank({"mood": [1, 2]}, movies, context_ids=7, formula="rating")[0]
        wanted = [expected(small, 7, movie, mood=(1, 2))["rating"] for movie in movies]
        np.testing.assert_allclose(own.scores, wanted, 1e-4, 1e-4)
        with pytest.raises(InvalidArgument, match="did you mean 'watch'"):
            client.rank(candidate_ids=movies, context_ids=7, formula="wacth")
        assert client.model().towers[2].formula == FORMULA
        assert client.model().calls[1].features[0].stored


def test_metrics_count_the_examples_of_each_part_that_ran(
    small: SmallBundle, service: Process
) -> None:
    http = f"http://127.0.0.1:{service.ports['http']}"
    with Client(http) as client, httpx.Client(base_url=http, timeout=30) as plain:

        def counted() -> dict[str, float]:
            page = plain.get("/metrics").text
            lines = re.findall(
                r'rowcast_tower_examples_total{model="movies",part="(\w+)",tower="ranking"} (\S+)',
                page,
            )
            return {part: float(value) for part, value in lines}

        before = counted()
        client.rank(candidate_ids=small.ids[:9].tolist(), context_ids=21, formula="watch")
        after = counted()
        assert {
            part: after[part] - before.get(part, 0)
            for part in after
            if after[part] != before.get(part)
        } == {
            "context": 1,
            "trunk": 9,
            "watch": 9,
        }
