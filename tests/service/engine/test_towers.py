"""A ranking tower in parts: what runs, how often, and that its scores are the whole tower's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.manifest import TowerForm
from service.engine.requests import Embedding, Ranked, Ranking, Recommendation, Target
from service.generations.forms import choose
from tests.service import small_model
from tests.service.running import CALL, Running, WaitingTower, column
from tests.service.small_bundle import GENRE_NAMES, SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]

ALL = ("context", "trunk", "score", "watch", "rating")
CONTEXT = {
    "user": column(3, 8, 999),
    "liked": column(1007, 1014, 1028, offsets=[0, 2, 2, 3], weights=[2.0, -0.5, 1.0]),
    "recent": column(1007, 1014, offsets=[0, 0, 1, 2]),
    "hour": column(3.0, 7.0, 9.0),
    "mood": column(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
}
ASKED: dict[str, Any] = {
    "context": CONTEXT,
    "candidate_ids": np.array([1000, 1049, 1007, 1049, 1210, 1273]),
    "offsets": np.array([0, 3, 3, 6]),
}


class CountingTower(WaitingTower):
    """Runs another network and tells on how many examples."""

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        self.examples: list[int] = []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.examples.append(len(next(iter(inputs.values()))))
        return self._network.run(inputs)


def rank(service: Running, **request: Any) -> Ranked:
    return service.ask(service.engine.rank(Ranking(**{"target": Target("movies"), **ASKED, **request}), CALL))


def counted(service: Running) -> dict[str, CountingTower]:
    """Puts a counter before each part; returns them by part."""
    current = service.switch.current("movies")
    assert current is not None
    counters = {}
    for place, part in enumerate(current.towers["ranking"].parts):
        counters[part.page.name] = CountingTower(part.network)
        service.with_network("ranking", counters[part.page.name], part=place)
    return counters


def ran(counters: Mapping[str, CountingTower]) -> dict[str, list[int]]:
    return {name: counter.examples for name, counter in counters.items() if counter.examples}


def test_scores_of_parts_are_those_of_the_whole_tower(write: Write, run: Run) -> None:
    write()
    write(model="cut", parts=True)
    service = run()
    heads = ("watch", "rating")
    whole, by_parts = (rank(service, target=Target(model), heads=heads) for model in ("movies", "cut"))
    np.testing.assert_allclose(by_parts.scores, whole.scores, 1e-5, 1e-5)
    for head in heads:
        np.testing.assert_allclose(by_parts.heads[head], whole.heads[head], 1e-5, 1e-5)


@pytest.mark.parametrize("parts", [True, False])
def test_scores_are_what_the_formula_of_the_model_says(write: Write, run: Run, parts: bool) -> None:
    small = write(parts=parts)
    answer = rank(run(), heads=("watch", "rating"))
    rows = {1007: 2, 1014: 3, 1028: 5}
    movies = small.tables["movies"]
    liked = [2 * movies[rows[1007]] - 0.5 * movies[rows[1014]], np.zeros(8), movies[rows[1028]]]
    recent = np.zeros((3, 3, 8))
    recent[1, 0], recent[2, 0] = movies[rows[1007]], movies[rows[1014]]
    owners = [0, 0, 0, 2, 2, 2]
    places = [(movie - 1000) // 7 for movie in ASKED["candidate_ids"]]
    inputs = {
        "user": small.tables["users"][[3, 8, 0]][owners],
        "liked": np.array(liked)[owners],
        "recent": recent[owners],
        "hour": np.array([3.0, 7.0, 9.0])[owners],
        "mood": np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])[owners],
        "movie": movies[1 + np.array(places)],
        "genres": np.array([_genres(small, place) for place in places]),
        "year": small.years[places],
    }
    expected = small_model.formula("ranking", small.edition, inputs)
    np.testing.assert_allclose(answer.scores, expected["score"], 1e-5, 1e-5)
    for head in ("watch", "rating"):
        np.testing.assert_allclose(answer.heads[head], expected[head], 1e-5, 1e-5)


def _genres(small: SmallBundle, place: int) -> Any:
    return small.tables["genres"][[GENRE_NAMES.index(name) for name in small.genres[place]]].sum(axis=0)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ((), {"context": [3], "trunk": [6], "score": [6]}),
        (("watch",), {"context": [3], "trunk": [6], "score": [6], "watch": [6]}),
        (("watch", "rating"), {"context": [3], "trunk": [6], "score": [6], "watch": [6], "rating": [6]}),
    ],
)
def test_only_the_parts_that_asked_for_outputs_need_run(
    write: Write, run: Run, heads: tuple[str, ...], expected: dict[str, list[int]]
) -> None:
    write(parts=True)
    service = run()
    counters = counted(service)
    answer = rank(service, heads=heads)
    assert set(answer.heads) == set(heads)
    assert ran(counters) == expected
    for part in ALL:
        examples = service.value("rowcast_part_examples_total", model="movies", tower="ranking", part=part)
        assert examples == sum(expected.get(part, []))


def test_recommend_runs_the_parts_of_its_score(write: Write, run: Run) -> None:
    write(parts=True)
    service = run()
    counters = counted(service)
    request = Recommendation(Target(), {"user": column(3, 5)}, k=3, candidates=10)
    answer = service.ask(service.engine.recommend(request, CALL))
    assert answer.neighbors.scores.size == 6
    assert ran(counters) == {"context": [2], "trunk": [20], "score": [20]}


def test_embed_of_a_tower_in_parts_runs_them_for_each_example(write: Write, run: Run) -> None:
    write(parts=True)
    service = run()
    counters = counted(service)
    movie = {"movie": column(1000, 1007), "genres": column(offsets=[0, 0, 0]), "year": column(0.5, 0.25)}
    features = {"user": column(3, 5), **movie}
    request = Embedding(Target(), "ranking", features)
    vectors = service.ask(service.engine.embed(request, CALL)).vectors
    ranked = rank(service, context={"user": column(3, 5)}, candidates=movie, candidate_ids=None, offsets=np.arange(3))
    assert ran(counters) == {"context": [2, 2], "trunk": [2, 2], "score": [2, 2]}
    np.testing.assert_allclose(vectors[:, 0], ranked.scores, 1e-6)


def test_rank_many_candidates_in_parts_runs_in_blocks_that_change_nothing(
    write: Write, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write(parts=True)
    request = {"context": {"user": column(1)}, "candidate_ids": small.ids, "offsets": None}
    whole = rank(run(), **request)
    monkeypatch.setattr("service.engine.rooms._ROWS_MAX", 7)
    blocks = rank(run(), **request)
    assert blocks.scores.tobytes() == whole.scores.tobytes()


def test_features_that_no_wanted_output_needs_need_not_be_sent(write: Write, run: Run) -> None:
    small = write(parts=True)
    service = run()
    current = service.switch.current("movies")
    assert current is not None
    tower = current.towers["ranking"]
    work = tower.work(frozenset(["score"]))
    assert work.inputs["context"] == ("user", "liked", "recent", "hour", "mood")
    assert tower.work(frozenset(["score"])) is work
    assert [part.page.name for part in work.parts] == ["context", "trunk", "score"]
    assert small.manifest.towers["ranking"].parts


def _form(kind: str, precision: str) -> TowerForm:
    return TowerForm(kind=kind, precision=precision, path=f"{kind}-{precision}", max_abs_error={})


@pytest.mark.parametrize(
    ("whole", "parts", "precision", "device", "expected"),
    [
        (["litert f32", "saved_model f32"], ["litert f32"], None, "cpu", "parts litert f32"),
        (["litert f32", "litert int8"], ["litert f32", "litert int8"], "int8", "cpu", "parts litert int8"),
        (["litert f32", "litert int8"], ["litert f32"], "int8", "cpu", "whole litert int8"),
        (["litert f32"], ["saved_model f32"], None, "cpu", "whole litert f32"),
        (["saved_model f32"], ["saved_model f32"], None, "cpu", "parts saved_model f32"),
        (["saved_model f32"], ["litert f32"], None, "cpu", "whole saved_model f32"),
        (["litert f32", "saved_model f32"], ["litert f32", "saved_model f32"], None, "gpu", "parts saved_model f32"),
        (["litert f32", "saved_model f32", "saved_model bf16"], [], "bf16", "gpu", "whole saved_model bf16"),
        (["litert f32", "saved_model f32", "saved_model bf16"], [], "bf16", "cpu", "whole saved_model bf16"),
        (["litert f32", "saved_model f32"], [], "bf16", "cpu", "whole litert f32"),
        (["litert f32"], ["litert f32"], None, "gpu", "parts litert f32"),
    ],
)
def test_forms_are_chosen_by_precision_and_device(
    write: Write, whole: list[str], parts: list[str], precision: Any, device: Any, expected: str
) -> None:
    page = write(parts=True).manifest.towers["ranking"]

    def forms(told: list[str]) -> tuple[TowerForm, ...]:
        return tuple(_form(*each.split()) for each in told)

    pieces = tuple(part.model_copy(update={"forms": forms(parts)}) for part in page.parts) if parts else ()
    chosen = choose(page.model_copy(update={"forms": forms(whole), "parts": pieces}), precision, device)
    how, *form = expected.split()
    assert {f"{each.kind} {each.precision}" for _, each in chosen.parts} == {" ".join(form)}
    assert [part.name for part, _ in chosen.parts] == (list(ALL) if how == "parts" else ["whole"])
    assert chosen.device(device) == ("gpu" if device == "gpu" and form[0] == "saved_model" else "cpu")
