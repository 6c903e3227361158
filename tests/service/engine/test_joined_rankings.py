"""A score has the same bits whatever it is computed with: in any batch, and joined with other callers' requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bundle.features import Column
from service.engine import company, joined_rankings, ranking
from service.engine.requests import Ranked, Ranking, Target
from service.engine.steps import Steps
from service.errors import InvalidArgument
from tests.service.running import Running, column
from tests.service.small_bundle import GENRE_NAMES, SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]

FORMULA = "sigmoid(score)^0.7 * exp(watch) / (1 + rating^2)"
MOVIES = 1000 + 7 * np.arange(40)


def context(user: int, *recent: int) -> dict[str, Column]:
    """A single id, a bag, a sequence, a number, and two numbers without offsets."""
    return {
        "user": column(user),
        "liked": column(*recent[:3], offsets=[0, len(recent[:3])]),
        "recent": column(*recent, offsets=[0, len(recent)]),
        "hour": column(user / 8),
        "mood": Column(np.array([user, -user], np.float32)),
    }


contexts = st.builds(
    lambda user, recent: context(user, *recent),
    st.integers(0, 12),
    st.lists(st.sampled_from([*MOVIES[:9].tolist(), 5]), max_size=6),
)
crowds = st.lists(
    st.tuples(contexts, st.lists(st.sampled_from(MOVIES.tolist()), min_size=1, max_size=20)), min_size=2, max_size=6
)


def answered(service: Running, request: Ranking) -> Ranked:
    current = service.switch.current("movies")
    assert current is not None
    return ranking.rank(current, request, service.settings, Steps("rank", math.inf, None))


def joined(service: Running, requests: Sequence[Ranking]) -> list[Ranked]:
    assert len({joined_rankings.likeness(request) for request in requests} - {None}) == 1
    return joined_rankings.split(answered(service, joined_rankings.join(requests)), len(requests))


def bits(answer: Ranked) -> tuple[Any, ...]:
    ids = None if answer.ids is None else answer.ids.tolist()
    heads = {name: scores.tobytes() for name, scores in answer.heads.items()}
    return ids, answer.positions.tolist(), answer.scores.tobytes(), heads, answer.offsets.tolist()


@pytest.fixture(params=["f32", "int8", "f32 in parts", "int8 in parts"])
def service(request: pytest.FixtureRequest, write: Write, run: Run) -> Running:
    precision, _, parts = request.param.partition(" in ")
    write(parts=bool(parts))
    return run(precision=precision)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crowd=crowds, k=st.integers(0, 3), heads=st.sampled_from([(), ("watch", "rating")]))
def test_joined_rankings_have_the_bits_of_each_alone(
    service: Running, crowd: list[Any], k: int, heads: tuple[str, ...]
) -> None:
    requests = [
        Ranking(Target(), asked, np.array(ids), heads=heads, k=k, formula=FORMULA if heads else "")
        for asked, ids in crowd
    ]
    alone = [answered(service, request) for request in requests]
    assert [bits(answer) for answer in joined(service, requests)] == [bits(answer) for answer in alone]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=contexts, places=st.lists(st.integers(0, 39), min_size=1, max_size=60))
def test_a_score_has_the_same_bits_in_any_batch(service: Running, asked: dict[str, Column], places: list[int]) -> None:
    whole = answered(service, Ranking(Target(), asked, MOVIES, heads=("watch",), formula=FORMULA))
    some = answered(service, Ranking(Target(), asked, MOVIES[places], heads=("watch",), formula=FORMULA))
    assert some.scores.tobytes() == whole.scores[places].tobytes()
    assert some.heads["watch"].tobytes() == whole.heads["watch"][places].tobytes()


def test_rankings_of_many_threads_have_the_bits_of_each_alone(service: Running) -> None:
    random = np.random.default_rng(5)
    requests = [
        Ranking(Target(), context(number % 12, *MOVIES[: number % 5]), random.choice(MOVIES, random.integers(1, 90)))
        for number in range(48)
    ]
    alone = [bits(answered(service, request)) for request in requests]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(lambda at: bits(answered(service, requests[at % 48])), range(480)))
    assert together == alone * 10


def test_joined_rankings_by_features_have_the_bits_of_each_alone(write: Write, run: Run) -> None:
    write(parts=True)
    service = run()
    genres = [[0, 2, 2], [0, 1, 3, 3], [0, 0]]
    requests = [
        Ranking(
            Target(),
            context(number, 1007, 1014),
            None,
            {
                "movie": column(*MOVIES[number : number + len(ends) - 1].tolist()),
                "genres": column(*GENRE_NAMES[: ends[-1]], offsets=ends) if ends[-1] else _no_texts(ends),
                "year": column(*np.linspace(0, 1, len(ends) - 1).tolist()),
            },
            offsets,
        )
        for number, (ends, offsets) in enumerate(zip(genres, (None, None, np.array([0, 1])), strict=True))
    ]
    alone = [answered(service, request) for request in requests]
    assert [bits(answer) for answer in joined(service, requests)] == [bits(answer) for answer in alone]


def _no_texts(ends: list[int]) -> Column:
    return Column(np.empty(0, object), np.array(ends))


def test_joined_ranking_of_bags_without_offsets_is_refused_or_each_candidates_own(write: Write, run: Run) -> None:
    write()
    service = run()

    def asked(*movies: int, genres: int) -> Ranking:
        sent = {
            "movie": column(*movies),
            "genres": column(*(GENRE_NAMES * 3)[:genres]),
            "year": column(*[0.5] * len(movies)),
        }
        return Ranking(Target(), context(1), None, sent)

    one, several = asked(1007, genres=2), asked(1007, genres=4)
    assert joined_rankings.likeness(one) != joined_rankings.likeness(several)  # two bags of three, were they joined
    same = [asked(1007, 1014, genres=4), asked(1021, genres=2)]
    assert [bits(each) for each in joined(service, same)] == [bits(answered(service, each)) for each in same]
    bags = [Ranking(Target(), context(1), None, {"genres": column(*GENRE_NAMES[:size])}) for size in (2, 3)]
    with pytest.raises(InvalidArgument):
        joined(service, bags)


BASE = Ranking(Target(), context(1, 1007), MOVIES[:5])


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, k=2),
        replace(BASE, heads=("watch",)),
        replace(BASE, formula="score * 2"),
        replace(BASE, tower="ranking"),
        replace(BASE, candidate_ids=np.array(["1000"], object)),
        replace(BASE, context={"user": column(1)}),
        replace(BASE, context={**BASE.context, "user": column("1")}),
        replace(BASE, context={**BASE.context, "mood": column(0.0)}),
        replace(BASE, candidates={"movie": column(*MOVIES[:5].tolist())}),
    ],
)
def test_requests_that_differ_in_more_than_their_values_are_not_joined(other: Ranking) -> None:
    assert joined_rankings.likeness(BASE) is not None
    assert joined_rankings.likeness(other) not in {None, joined_rankings.likeness(BASE)}


@pytest.mark.parametrize(
    "alone",
    [
        replace(BASE, context_ids=np.array([3])),
        replace(BASE, offsets=np.array([0, 2, 5])),
        replace(BASE, candidate_ids=MOVIES[:0]),
        replace(BASE, candidate_ids=np.arange(joined_rankings.CANDIDATES_MAX + 1)),
        replace(BASE, context={"liked": column(1, 2, offsets=[0, 2], weights=[1.0, 2.0])}),
        replace(BASE, context={"user": column(1, 2, offsets=[0, 1, 2])}),
        replace(BASE, candidates={"movie": column(1, 2, 3)}),
        replace(BASE, candidate_ids=None),
    ],
)
def test_requests_that_gain_nothing_or_cannot_be_joined_are_not(alone: Ranking) -> None:
    assert joined_rankings.likeness(alone) is None


def test_an_answer_of_other_contexts_is_no_answer_to_those_joined(write: Write, run: Run) -> None:
    write()
    answer = answered(run(), BASE)
    with pytest.raises(ValueError, match="1 contexts were answered, 2 were joined"):
        joined_rankings.split(answer, 2)


def test_rankings_are_among_what_is_joined() -> None:
    assert company._JOINING[Ranking] is joined_rankings
