"""Contexts by id: what is stored of them, overridden by what is sent, defaults for what neither has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.manifest import EmbeddedFeature, Unknown
from service.engine.requests import Ranked, Ranking, Recommendation, Retrieval, Target
from service.errors import InvalidArgument, TooLarge
from tests.service import oracles
from tests.service.running import CALL, Running, column
from tests.service.small_bundle import SmallBundle
from tests.service.small_pieces import STORED_USERS

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
USER_OR_0 = {
    "user": EmbeddedFeature(kind="single", table="users", role="context", unknown=Unknown(rule="row", row=0), default=0)
}


def rank(service: Running, **request: Any) -> Ranked:
    return service.ask(service.engine.rank(Ranking(Target(), **{"context": {}, **request}), CALL))


def stored(small: SmallBundle, user: int) -> dict[str, Any]:
    places, weights, mood = STORED_USERS[user]
    return {"liked": dict(zip(small.ids[list(places)].tolist(), weights, strict=True)), "mood": mood}


def test_rank_by_context_ids_takes_what_is_stored(write: Write, run: Run) -> None:
    small = write(users=True)
    service = run()
    movies = small.ids[[0, 5, 9]]
    answer = rank(service, context_ids=np.array([21, 7, 3]), candidate_ids=movies, offsets=np.array([0, 1, 2, 3]))
    expected = [
        oracles.ranked(small, movie, user, **stored(small, user))["score"]
        for movie, user in zip(movies.tolist(), (21, 7, 3), strict=True)
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)


def test_what_is_sent_overrides_what_is_stored(write: Write, run: Run) -> None:
    small = write(users=True)
    context = {"mood": column(0.5, 0.25), "hour": column(3.0)}
    answer = rank(run(), context=context, context_ids=np.array([7]), candidate_ids=small.ids[:1])
    told = {**stored(small, 7), "mood": (0.5, 0.25), "hour": 3.0}
    expected = oracles.ranked(small, small.ids.tolist()[0], 7, **told)["score"]
    np.testing.assert_allclose(answer.scores, [expected], 1e-5, 1e-5)


def test_unknown_context_has_the_defaults_and_is_counted(write: Write, run: Run) -> None:
    small = write(users=True, features=USER_OR_0)
    service = run()
    ids = np.array([7, 999, 3, 998])
    movies = small.ids[[1, 2, 3, 4]]
    answer = rank(service, context_ids=ids, candidate_ids=movies, offsets=np.arange(5))
    expected = [
        oracles.ranked(small, movie, user, **(stored(small, user) if user in STORED_USERS else {}))["score"]
        for movie, user in zip(movies.tolist(), (7, 0, 3, 0), strict=True)
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)
    assert service.value("rowcast_unknown_contexts_total", model="movies", store="users") == 2


def test_unknown_context_that_is_sent_whole_is_a_label(write: Write, run: Run) -> None:
    small = write(users=True)
    service = run()
    answer = rank(service, context={"user": column(5)}, context_ids=np.array([999]), candidate_ids=small.ids[:2])
    expected = [oracles.ranked(small, movie, 5)["score"] for movie in small.ids[:2].tolist()]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)


def test_retrieve_and_recommend_take_contexts_by_id(write: Write, run: Run) -> None:
    small = write(users=True)
    service = run()
    by_id = Retrieval(Target(), k=4, context_ids=np.array([7, 21]))
    found = service.ask(service.engine.retrieve(by_id, CALL))
    sent = Retrieval(Target(), k=4, features={"user": column(7, 21)})
    assert found.neighbors.ids.tolist() == service.ask(service.engine.retrieve(sent, CALL)).neighbors.ids.tolist()
    request = Recommendation(Target(), {}, k=3, candidates=40, context_ids=np.array([7, 21]))
    answer = service.ask(service.engine.recommend(request, CALL))
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
        ({"context_ids": np.array([0.5], np.float32)}, InvalidArgument, "id"),
        ({"context_ids": np.arange(400)}, TooLarge, "ids_max"),
    ],
)
def test_context_ids_that_do_not_do_are_refused(
    write: Write, run: Run, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    small = write(users=True)
    with pytest.raises(kind, match=message):
        rank(run(ids_max=300), candidate_ids=small.ids[:1], **changes)


def test_context_ids_without_a_store_are_refused(write: Write, run: Run) -> None:
    small = write()
    with pytest.raises(InvalidArgument, match="no context store; send the features"):
        rank(run(), context_ids=np.array([7]), candidate_ids=small.ids[:1])


def test_queries_by_context_and_by_vector_are_two_kinds(write: Write, run: Run) -> None:
    write(users=True)
    service = run()
    request = Retrieval(Target(), vectors=np.ones(8, np.float32), context_ids=np.array([7]))
    with pytest.raises(InvalidArgument, match="got vectors, context ids"):
        service.ask(service.engine.retrieve(request, CALL))
