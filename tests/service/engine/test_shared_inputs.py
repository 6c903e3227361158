"""Inputs that several features read, and features that read inputs of contexts and of candidates together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.manifest import CrossedIds, CrossKey, DenseFeature, EmbeddedFeature, Feature
from service.engine.requests import Embedding, Lookup, Ranked, Ranking, Recommendation, Target
from service.errors import InvalidArgument
from tests.service import oracles, small_model
from tests.service.running import CALL, Running, column
from tests.service.small_bundle import GENRES, SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]

CROSSED: dict[str, Feature] = {
    "genres": EmbeddedFeature(
        kind="bag",
        table="genres",
        role="candidate",
        combiner="sum",
        inputs=("device", "genres"),
        ids=CrossedIds(
            keys=(CrossKey(dtype="string", default="web"), CrossKey(dtype="string", role="candidate")), buckets=GENRES
        ),
    )
}
NUMBERED: dict[str, Feature] = {"hour": DenseFeature(kind="dense", role="context", inputs=("user",))}


def rank(service: Running, **request: Any) -> Ranked:
    return service.ask(service.engine.rank(Ranking(Target(), **request), CALL))


def genre_sums(service: Running, small: SmallBundle, devices: list[str], places: list[int]) -> Any:
    """[m, 4] what the crossed feature gives for the device of each candidate."""
    current = service.switch.current("movies")
    assert current is not None
    names = [small.genres[place] for place in places]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in names])])
    flat = column(*[name for each in names for name in each], offsets=offsets.tolist())
    own = column(*devices, offsets=list(range(len(devices) + 1)))
    return current.reader.activation("genres", {"device": own, "genres": flat}, len(places)).values


@pytest.mark.parametrize("parts", [False, True])
def test_cross_of_context_and_candidate_is_made_for_each_candidate(write: Write, run: Run, parts: bool) -> None:
    small = write(features=CROSSED, parts=parts)
    service = run()
    places = [2, 5, 8, 11]
    context = {"user": column(3, 8), "device": column("phone", "tv")}
    answer = rank(service, context=context, candidate_ids=small.ids[places], offsets=np.array([0, 1, 4]))
    sums = genre_sums(service, small, ["phone", "tv", "tv", "tv"], places)
    assert len(np.unique(sums, axis=0)) > 1
    for score, user, place, activation in zip(answer.scores, (3, 8, 8, 8), places, sums, strict=True):
        plain = oracles.ranked(small, small.ids[place], user, genres=())["score"]
        np.testing.assert_allclose(score, plain + _share(small, activation), 1e-4, 1e-4)


def _share(small: SmallBundle, genres: Any) -> float:
    """What an activation of genres adds to the score, which is linear in it."""
    matrix, _ = small_model.weights("ranking", small.edition)
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in small_model.INPUTS["ranking"].values()]
    first = int(np.sum(sizes[: list(small_model.INPUTS["ranking"]).index("genres")]))
    return float(genres.astype(np.float64) @ matrix[first : first + 4, 0])


def test_input_of_a_context_in_a_cross_that_is_left_out_has_its_default(write: Write, run: Run) -> None:
    small = write(features=CROSSED)
    service = run()
    told = rank(service, context={"user": column(3), "device": column("web")}, candidate_ids=small.ids[:9])
    left = rank(service, context={"user": column(3)}, candidate_ids=small.ids[:9])
    assert left.scores.tolist() == told.scores.tolist()
    request = Recommendation(Target(), {"user": column(3), "device": column("tv")}, k=3)
    found = service.ask(service.engine.recommend(request, CALL)).neighbors
    again = rank(service, context={"user": column(3), "device": column("tv")}, candidate_ids=found.ids)
    np.testing.assert_allclose(found.scores, again.scores, 1e-6)


def test_ids_that_are_numbers_too_are_sent_once(write: Write, run: Run) -> None:
    small = write(features=NUMBERED)
    service = run()
    answer = rank(service, context={"user": column(3)}, candidate_ids=small.ids[:4])
    expected = [oracles.ranked(small, movie, 3, hour=3.0)["score"] for movie in small.ids[:4].tolist()]
    np.testing.assert_allclose(answer.scores, expected, 1e-4, 1e-4)
    request = Embedding(Target(), "query", {"user": column(3, 5)})
    vectors = service.ask(service.engine.embed(request, CALL)).vectors
    for vector, user in zip(vectors, (3, 5), strict=True):
        np.testing.assert_allclose(vector, oracles.query_vector(small, user, hour=float(user)), 1e-4, 1e-4)
    with pytest.raises(InvalidArgument, match="'hour' is not taken"):
        rank(service, context={"user": column(3), "hour": column(1.0)}, candidate_ids=small.ids[:4])


def test_lookup_by_an_input_reads_the_table_of_its_first_reader(write: Write, run: Run) -> None:
    small = write(features=NUMBERED)
    service = run()
    found = service.ask(service.engine.lookup(Lookup(Target(), "user", column(7)), CALL))
    np.testing.assert_array_equal(found.vectors, small.tables["users"][[7]])
    write(model="crossed", features=CROSSED)
    service.scan()
    with pytest.raises(InvalidArgument, match="'genres' crosses several inputs"):
        service.ask(service.engine.lookup(Lookup(Target("crossed"), "genres", column("drama")), CALL))
