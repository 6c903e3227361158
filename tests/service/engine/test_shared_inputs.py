"""Inputs that several features read, and features that read inputs of contexts and of candidates together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.manifest import CrossedIds, CrossKey, DenseFeature, EmbeddedFeature, Feature
from service.errors import InvalidArgument
from tests.service import oracles, small_model
from tests.service.engine.served import Served, column
from tests.service.small_bundle import GENRES, SmallBundle

Load = Callable[..., Served]

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


def genre_sums(service: Served, small: SmallBundle, devices: list[str], places: list[int]) -> Any:
    """[m, 4] what the crossed feature gives for the device of each candidate."""
    names = [small.genres[place] for place in places]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in names])])
    flat = column(*[name for each in names for name in each], offsets=offsets.tolist())
    own = column(*devices, offsets=list(range(len(devices) + 1)))
    return service.version.reader.activation("genres", {"device": own, "genres": flat}, len(places)).values


@pytest.mark.parametrize("parts", [False, True])
def test_rank_crosses_context_and_candidate_for_each_candidate(load: Load, parts: bool) -> None:
    service = load(features=CROSSED, parts=parts)
    small = service.small
    places = [2, 5, 8, 11]
    context = {"user": column(3, 8), "device": column("phone", "tv")}
    answer = service.rank(context=context, candidate_ids=small.ids[places], offsets=np.array([0, 1, 4]))
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


def test_rank_without_a_crossed_context_input_takes_its_default(load: Load) -> None:
    service = load(features=CROSSED)
    sent = service.rank(context={"user": column(3), "device": column("web")}, candidate_ids=service.small.ids[:9])
    left = service.rank(context={"user": column(3)}, candidate_ids=service.small.ids[:9])
    assert left.scores.tolist() == sent.scores.tolist()
    found = service.recommend(features={"user": column(3), "device": column("tv")}, k=3).neighbors
    again = service.rank(context={"user": column(3), "device": column("tv")}, candidate_ids=found.ids)
    np.testing.assert_allclose(found.scores, again.scores, 1e-6)


def test_input_read_as_id_and_as_number_is_sent_once(load: Load) -> None:
    service = load(features=NUMBERED)
    small = service.small
    answer = service.rank(context={"user": column(3)}, candidate_ids=small.ids[:4])
    expected = [oracles.ranked(small, movie, 3, hour=3.0)["score"] for movie in small.ids[:4].tolist()]
    np.testing.assert_allclose(answer.scores, expected, 1e-4, 1e-4)
    vectors = service.embed("query", {"user": column(3, 5)}).vectors
    for vector, user in zip(vectors, (3, 5), strict=True):
        np.testing.assert_allclose(vector, oracles.query_vector(small, user, hour=float(user)), 1e-4, 1e-4)
    with pytest.raises(InvalidArgument, match="'hour' is not taken"):
        service.rank(context={"user": column(3), "hour": column(1.0)}, candidate_ids=small.ids[:4])


def test_lookup_by_an_input_reads_the_table_of_its_first_reader(load: Load) -> None:
    service = load(features=NUMBERED)
    found = service.look_up("user", column(7))
    np.testing.assert_array_equal(found.vectors, service.small.tables["users"][[7]])
    crossed = load(model="crossed", features=CROSSED)
    with pytest.raises(InvalidArgument, match="'genres' crosses several inputs"):
        crossed.look_up("genres", column("drama"))


def test_rank_without_an_input_that_crosses_need_is_rejected_by_its_name(load: Load) -> None:
    with pytest.raises(FeatureError, match="'user': a value must be sent"):
        load(features=CROSSED).rank(candidate_ids=np.array([1007]))
