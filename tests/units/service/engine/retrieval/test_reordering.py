"""Formula, minimum score, crowding and diversity, against loops over all candidates of
small corpora.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.engine.retrieval import reordering
from service.errors import InvalidArgument, TooLarge
from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]


def diverse_by_loops(
    scores: list[float],
    vectors: NDArray[np.float64],
    diversity: float,
    chosen: list[int],
    free: list[int],
) -> dict[int, float]:
    """The gain of each candidate that may be picked next."""
    low = min(scores)
    high = max(scores)
    gains = {}
    for candidate in free:
        relevance = (scores[candidate] - low) / (high - low) if high > low else 0.0
        cosines = []
        for chosen_candidate in chosen:
            lengths = float(
                np.linalg.norm(vectors[candidate]) * np.linalg.norm(vectors[chosen_candidate])
            )
            cosines.append(
                float(vectors[candidate] @ vectors[chosen_candidate]) / lengths if lengths else 0.0
            )
        gains[candidate] = (1 - diversity) * relevance - diversity * max(cosines, default=0.0)
    return gains


Codes = list[tuple[int, int]]
"""The numbers of the values that candidates have of two attributes; -1: it has none."""
CODES = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 2)), min_size=1, max_size=12)
MAXIMA = st.tuples(st.integers(1, 3), st.integers(1, 4))


def free_by_loops(
    codes: Codes, maxima: tuple[int, int], chosen: list[int], remaining: list[int]
) -> list[int]:
    """Those whose values are not there as often as they may be."""
    free = []
    for candidate in remaining:
        counts = [
            sum(
                codes[chosen_candidate][column] == codes[candidate][column]
                for chosen_candidate in chosen
            )
            for column in range(2)
        ]
        if all(
            codes[candidate][column] < 0 or counts[column] < maxima[column] for column in range(2)
        ):
            free.append(candidate)
    return free


@given(
    codes=CODES,
    maxima=MAXIMA,
    k=st.integers(1, 12),
    diversity=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=300)
def test_diverse_picks_the_largest_gain_among_those_that_crowding_leaves(
    codes: Codes, maxima: tuple[int, int], k: int, diversity: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores = np.sort(random.normal(size=len(codes)).round(1))[::-1].astype(np.float32)
    # Equal and zero vectors are among them.
    vectors = random.integers(-1, 2, (len(codes), 3)).astype(np.float32)
    picked = reordering.pick_diverse(scores, vectors, k, diversity, np.array(codes), maxima)
    for step, candidate in enumerate(picked):
        remaining = [number for number in range(len(codes)) if number not in picked[:step]]
        free = free_by_loops(codes, maxima, picked[:step], remaining)
        gains = diverse_by_loops(
            scores.tolist(), vectors.astype(float), diversity, picked[:step], free
        )
        assert gains[candidate] >= max(gains.values()) - 1e-5
    remaining = [number for number in range(len(codes)) if number not in picked]
    assert len(picked) == len(set(picked)) <= k
    assert len(picked) == k or not free_by_loops(codes, maxima, picked, remaining)


@given(codes=CODES, maxima=MAXIMA, k=st.integers(1, 12))
def test_uncrowded_leaves_the_first_of_each_value(
    codes: Codes, maxima: tuple[int, int], k: int
) -> None:
    picked_by_loops: list[int] = []
    for candidate in range(len(codes)):
        picked_by_loops += free_by_loops(codes, maxima, picked_by_loops, [candidate])
    assert reordering.pick_uncrowded(np.array(codes, np.int64), maxima, k) == picked_by_loops[:k]


def ids_and_scores(service: Served, **request: Any) -> tuple[list[int], list[float]]:
    neighbors = service.retrieve(context={"user": column(4)}, **request)
    return neighbors.ids.tolist(), neighbors.scores.tolist()


def all_of(service: Served) -> list[tuple[int, float, dict[str, Any]]]:
    """Id, score and attributes of every candidate, best first."""
    names = ("year", "rating", "title")
    neighbors = service.retrieve(
        context={"user": column(4)}, k=service.small.ids.size, attributes=names
    )
    rows = zip(*[neighbors.attributes[name] for name in names], strict=True)
    named = [dict(zip(names, row, strict=True)) for row in rows]
    return list(zip(neighbors.ids.tolist(), neighbors.scores.tolist(), named, strict=True))


def test_formula_orders_the_pool_by_score_and_attributes_null_counting_as_zero(load: Load) -> None:
    service = load()
    ids, scores = ids_and_scores(service, k=40, formula="score * 0.5 + (year - 1990) / 10 - rating")
    expected = {
        movie_id: score * 0.5 + ((attributes["year"] or 0) - 1990) / 10 - attributes["rating"]
        for movie_id, score, attributes in all_of(service)
    }
    assert ids == sorted(expected, key=lambda movie_id: -expected[movie_id])
    np.testing.assert_allclose(scores, [expected[movie_id] for movie_id in ids], 1e-5)
    best = [movie_id for movie_id, _, _ in all_of(service)][:12]
    ids, _ = ids_and_scores(service, k=5, pool_size=12, formula="-score")
    assert ids == best[::-1][:5], "only the pool is reordered"


def test_min_score_leaves_out_what_scores_less_but_not_what_scores_the_same(load: Load) -> None:
    service = load()
    ids, scores = ids_and_scores(service, k=10)
    assert ids_and_scores(service, k=10, min_score=scores[3]) == (ids[:4], scores[:4])
    assert ids_and_scores(service, k=10, min_score=-1e300) == (ids, scores)
    assert ids_and_scores(service, k=10, min_score=1e300) == ([], [])
    ids, _ = ids_and_scores(service, k=10, formula="-score", min_score=0)
    assert ids == [movie_id for movie_id, score, _ in reversed(all_of(service)) if score <= 0][:10]


@pytest.mark.parametrize("candidates", [0, 8])
def test_crowding_returns_at_most_max_of_each_value_and_as_many_as_possible(
    load: Load, candidates: int
) -> None:
    service = load(size=400)
    neighbors = service.retrieve(context={"user": column(4)}, k=400, attributes=("studio",))
    studios = neighbors.attributes["studio"]
    chosen_positions: list[int] = []
    for position, studio in enumerate(studios):
        if (
            studio is None
            or [studios[chosen_position] for chosen_position in chosen_positions].count(studio) < 2
        ):
            chosen_positions.append(position)
    for k in (8, 30, 390):
        ids, _ = ids_and_scores(
            service,
            k=k,
            pool_size=candidates and max(candidates, k),
            crowding={"studio": 2},
        )
        assert ids == neighbors.ids[chosen_positions[:k]].tolist()


@pytest.mark.parametrize("candidates", [0, 8])
def test_crowding_by_several_attributes_takes_the_best_that_each_of_them_leaves(
    load: Load, candidates: int
) -> None:
    service = load(size=400)
    names = ("studio", "classic")
    neighbors = service.retrieve(context={"user": column(4)}, k=400, attributes=names)
    values = list(zip(*[neighbors.attributes[name] for name in names], strict=True))
    chosen_positions: list[int] = []
    for position, (studio, classic) in enumerate(values):
        studios = [values[chosen_position][0] for chosen_position in chosen_positions].count(studio)
        classics = [values[chosen_position][1] for chosen_position in chosen_positions].count(
            classic
        )
        if (studio is None or studios < 2) and (classic is None or classics < 5):
            chosen_positions.append(position)
    ids, _ = ids_and_scores(
        service, k=8, pool_size=candidates, crowding={"studio": 2, "classic": 5}
    )
    assert ids == neighbors.ids[chosen_positions[:8]].tolist()


def test_crowding_of_merged_queries_takes_the_best_score_of_each_candidate(load: Load) -> None:
    service = load(size=400)
    vectors = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    request = {"vectors": vectors, "query_offsets": np.array([0, 2, 5]), "attributes": ("studio",)}
    neighbors = service.retrieve(k=400, **request)
    crowded = service.retrieve(k=9, pool_size=9, crowding={"studio": 1}, explain=True, **request)
    assert [explanation.matches for explanation in crowded.explanations] == [400, 400]
    for first, last, start in ((0, 400, 0), (400, 800, 9)):
        chosen_positions: list[int] = []
        for position in range(first, last):
            studio = neighbors.attributes["studio"][position]
            if studio is None or studio not in [
                neighbors.attributes["studio"][chosen_position]
                for chosen_position in chosen_positions
            ]:
                chosen_positions.append(position)
        assert (
            crowded.ids[start : start + 9].tolist() == neighbors.ids[chosen_positions[:9]].tolist()
        )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"formula": "-score"},
        {"diversity": 0.5},
        {"crowding": {"studio": 4, "classic": 9}},
        {"crowding": {"studio": 4}, "diversity": 0.3, "min_score": 0.0},
    ],
)
@pytest.mark.parametrize("call", ["retrieve", "recommend"])
def test_pages_of_a_pool_make_up_its_list(load: Load, call: str, options: dict[str, Any]) -> None:
    if call == "recommend":
        options = {**options, "formula": "score + retrieval_score"}
    tree = {"num_leaves": 20, "leaves_to_search": 3, "dimensions_per_block": 2, "reorder": 20}
    service = load(size=400, index_kind="tree_ah", parameters=tree)
    result = getattr(service, call)

    def page(offset: int, k: int) -> Any:
        return result(
            context={"user": column(4)}, k=k, pool_size=60, offset=offset, explain=True, **options
        )

    whole = page(0, 60)
    page_ids = list[int]()
    for offset in range(0, 56, 7):
        part = page(offset, 7)
        page_ids += part.ids.tolist()
        (explanation,) = part.explanations
        ended = "the pool of 60 candidates has no more neighbors"
        assert explanation.shortfall == ("" if part.ids.size == 7 else ended)
    assert len(set(page_ids)) == len(page_ids) > 14
    assert page_ids == whole.ids[:56].tolist()


def test_diversity_of_the_whole_pool_picks_each_neighbor_by_its_gain(load: Load) -> None:
    service = load()
    all_neighbors = all_of(service)
    ids, _ = ids_and_scores(service, k=10, diversity=0.6)
    positions = {movie_id: position for position, movie_id in enumerate(service.small.ids.tolist())}
    vectors = np.array(
        [service.small.vectors[positions[movie_id]] for movie_id, _, _ in all_neighbors], float
    )
    order = {movie_id: position for position, (movie_id, _, _) in enumerate(all_neighbors)}
    for step, next_id in enumerate(ids):
        chosen = [order[chosen_id] for chosen_id in ids[:step]]
        remaining = [position for position in range(len(all_neighbors)) if position not in chosen]
        gains = diverse_by_loops(
            [score for _, score, _ in all_neighbors], vectors, 0.6, chosen, remaining
        )
        assert gains[order[next_id]] >= max(gains.values()) - 1e-5
    assert ids != [movie_id for movie_id, _, _ in all_neighbors[:10]]
    assert ids_and_scores(service, k=10, diversity=0.0) == ids_and_scores(service, k=10)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"pool_size": 9}, "pool_size is 9, fewer than k, which is 10"),
        ({"offset": -1, "pool_size": 50}, "offset is -1; at least 0"),
        ({"offset": 0}, "offset was sent without pool_size; send the size of the pool"),
        (
            {"offset": 41, "pool_size": 50},
            "offset is 41 and k is 10, more than the 50 candidates of the pool",
        ),
        ({"diversity": 1.5}, r"diversity is 1\.5; 0 to 1"),
        ({"diversity": float("nan")}, "diversity is nan"),
        ({"min_score": float("nan")}, "min_score is nan; a finite number"),
        (
            {"crowding": {"titel": 1}},
            "crowding has the unknown name 'titel'; .*did you mean 'title'",
        ),
        (
            {"crowding": {"rating": 1}},
            "crowding.rating is an attribute of type double; one of type string",
        ),
        ({"crowding": {"genres": 1}}, "crowding.genres is an attribute of type list<string>"),
        ({"crowding": {"title": 0}}, "crowding.title is 0; at least 1"),
        (
            {"formula": "score * yaer"},
            "formula has the unknown name 'yaer'; a name of index 'movies'",
        ),
        ({"formula": "title"}, "formula has the unknown name 'title'"),
        (
            {"formula": "log(0 * score)"},
            "no finite value for candidate 0, where score = .*its id is",
        ),
    ],
)
def test_option_out_of_range_is_rejected_with_its_value(
    load: Load, request_: dict[str, Any], message: str
) -> None:
    service = load()
    with pytest.raises(InvalidArgument, match=message):
        service.retrieve(context={"user": column(1)}, **request_)
    if "formula" not in request_:
        with pytest.raises(InvalidArgument, match=message):
            service.recommend(context={"user": column(1)}, **request_)


def test_pool_beyond_the_limit_of_candidates_is_too_large(load: Load) -> None:
    service = load(limits={"max_candidates": 30})
    with pytest.raises(
        TooLarge, match=r"40 candidates; at most 30 are accepted \(max_candidates\)"
    ):
        service.retrieve(context={"user": column(1)}, diversity=0.5)
