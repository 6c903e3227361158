"""Contexts by id: what is stored of them, overridden by what is sent, defaults for what neither has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.errors import UnknownCandidate
from bundle.manifest import EmbeddedFeature, Unknown
from service.errors import InvalidArgument, TooLarge
from tests.service import oracles
from tests.service.engine.served import Served, column
from tests.service.small_bundle import SmallBundle
from tests.service.small_pieces import STORED_USERS

Load = Callable[..., Served]
USER_OR_0 = {
    "user": EmbeddedFeature(kind="single", table="users", role="context", unknown=Unknown(rule="row", row=0), default=0)
}


def stored(small: SmallBundle, user: int) -> dict[str, Any]:
    places, weights, mood = STORED_USERS[user]
    return {"liked": dict(zip(small.ids[list(places)].tolist(), weights, strict=True)), "mood": mood}


def test_rank_by_context_ids_takes_what_is_stored(load: Load) -> None:
    service = load(users=True)
    movies = service.small.ids[[0, 5, 9]]
    answer = service.rank(context_ids=np.array([21, 7, 3]), candidate_ids=movies, offsets=np.array([0, 1, 2, 3]))
    expected = [
        oracles.ranked(service.small, movie, user, **stored(service.small, user))["score"]
        for movie, user in zip(movies.tolist(), (21, 7, 3), strict=True)
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)


def test_rank_with_context_features_sent_overrides_the_store(load: Load) -> None:
    service = load(users=True)
    context = {"mood": column(0.5, 0.25), "hour": column(3.0)}
    answer = service.rank(context=context, context_ids=np.array([7]), candidate_ids=service.small.ids[:1])
    expected_context = {**stored(service.small, 7), "mood": (0.5, 0.25), "hour": 3.0}
    expected = oracles.ranked(service.small, service.small.ids.tolist()[0], 7, **expected_context)["score"]
    np.testing.assert_allclose(answer.scores, [expected], 1e-5, 1e-5)


def test_rank_of_an_unknown_context_takes_the_defaults_and_counts_it(load: Load) -> None:
    service = load(users=True, features=USER_OR_0)
    small = service.small
    ids = np.array([7, 999, 3, 998])
    movies = small.ids[[1, 2, 3, 4]]
    answer = service.rank(context_ids=ids, candidate_ids=movies, offsets=np.arange(5))
    expected = [
        oracles.ranked(small, movie, user, **(stored(small, user) if user in STORED_USERS else {}))["score"]
        for movie, user in zip(movies.tolist(), (7, 0, 3, 0), strict=True)
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)
    assert service.value("rowcast_missing_contexts_total", model="movies", store="users") == 2


def test_rank_of_an_unknown_context_sent_in_full_takes_its_id_as_a_label(load: Load) -> None:
    service = load(users=True)
    answer = service.rank(context={"user": column(5)}, context_ids=np.array([999]), candidate_ids=service.small.ids[:2])
    expected = [oracles.ranked(service.small, movie, 5)["score"] for movie in service.small.ids[:2].tolist()]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)


def test_retrieve_and_recommend_take_contexts_by_id(load: Load) -> None:
    service = load(users=True)
    small = service.small
    found = service.retrieve(k=4, context_ids=np.array([7, 21]))
    sent = service.retrieve(k=4, features={"user": column(7, 21)})
    assert found.neighbors.ids.tolist() == sent.neighbors.ids.tolist()
    answer = service.recommend(features={}, k=3, candidates=40, context_ids=np.array([7, 21]))
    assert answer.neighbors.offsets.tolist() == [0, 3, 6]
    for place, user in enumerate((7, 21)):
        scores = {
            movie: oracles.ranked(small, movie, user, **stored(small, user))["score"] for movie in small.ids.tolist()
        }
        best = sorted(scores, key=lambda movie: -scores[movie])[:3]
        assert answer.neighbors.ids[3 * place : 3 * place + 3].tolist() == best


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"context_ids": np.array([999])},
            InvalidArgument,
            "context 999 is not in store 'users' of 3 .*'user'.*default",
        ),
        ({"context_ids": np.array([7, 3])}, InvalidArgument, "2 context ids were sent for 1 contexts"),
        ({"context_ids": np.array([0.5], np.float32)}, UnknownCandidate, "id"),
        ({"context_ids": np.arange(400)}, TooLarge, "max_values"),
    ],
)
def test_rank_invalid_context_ids_are_rejected(
    load: Load, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    service = load({"max_values": 300}, users=True)
    with pytest.raises(kind, match=message):
        service.rank(candidate_ids=service.small.ids[:1], **changes)


def test_rank_context_ids_without_a_store_are_rejected(load: Load) -> None:
    service = load()
    with pytest.raises(InvalidArgument, match="no context store; send the features"):
        service.rank(context_ids=np.array([7]), candidate_ids=service.small.ids[:1])


def test_retrieve_by_context_and_by_vector_is_rejected(load: Load) -> None:
    with pytest.raises(InvalidArgument, match="got vectors, context ids"):
        load(users=True).retrieve(vectors=np.ones(8, np.float32), context_ids=np.array([7]))
