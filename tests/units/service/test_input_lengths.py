"""Inputs that take a fixed number of values: the same response or error over every transport."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.format.manifest import InputLength
from tests.bundles.small import feature_entries, write_small_bundle
from tests.units.service.cases import LIMITS, Case
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

MOVIES = [1000, 1007, 1014, 1021]
LENGTHS = {
    "exact": InputLength(values=3),
    "fitted": InputLength(values=3, pad=1000, pad_side="start", keep="last"),
    "first": InputLength(values=3, keep="first"),
}
"""Of the bag `history`, which query towers read, and of the sequence `recent`, which ranking towers
read, by model.
"""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("bundles")
    for model, length in LENGTHS.items():
        entries = {
            name: feature_entries()[name].model_copy(
                update={"input_length": length, "default": None}
            )
            for name in ("history", "recent")
        }
        write_small_bundle(root, small_towers, model, 1, features=entries)
    service = RunningService(root, **LIMITS)
    clients = Clients(service)
    yield clients
    clients.close()
    service.close()


def cases(values: list[int], model: str) -> list[Case]:
    queried = {"user": 7, "history": values}
    ranked = {"user": 7, "recent": values}
    bodies: dict[str, dict[str, object]] = {
        "retrieve": {"requests": [{"context": queried}], "k": 3},
        "recommend": {"requests": [{"context": {**queried, **ranked}}], "k": 3},
        "rank": {"requests": [{"context": ranked, "candidate_ids": MOVIES[:2]}]},
        "embed": {"tower": "query", "requests": [{"features": queried}]},
    }
    return [Case(call, "lists", body, model=model) for call, body in bodies.items()]


@pytest.mark.parametrize(
    ("model", "values", "counts"),
    [
        ("exact", MOVIES[:2], "2 values in example 0; a list of 3 was expected"),
        ("exact", MOVIES[:1], "1 values in example 0; a list of 3 was expected"),
        ("exact", [], "0 values in example 0; a list of 3 was expected"),
        ("exact", MOVIES, "4 values in example 0; a list of 3 was expected"),
        ("first", MOVIES[:2], "2 values in example 0; a list of at least 3 was expected"),
        ("first", [], "0 values in example 0; a list of at least 3 was expected"),
    ],
)
def test_list_of_another_length_is_rejected_alike_by_every_call_and_transport(
    model: str, values: list[int], counts: str, clients: Clients
) -> None:
    for case in cases(values, model):
        path = {"rank": "context.recent", "embed": "features.history"}.get(case.call)
        expected = ("INVALID_ARGUMENT", f"{path or 'context.history'}: {counts}")
        assert clients.all(case) == [expected] * 3


@pytest.mark.parametrize(
    ("model", "values", "same"),
    [
        ("fitted", MOVIES, MOVIES[1:]),
        ("fitted", [1014], [1000, 1000, 1014]),
        ("fitted", [], [1000, 1000, 1000]),
        ("first", MOVIES, MOVIES[:3]),
    ],
)
def test_list_that_the_recipe_pads_or_cuts_is_answered_as_the_list_that_it_stands_for(
    model: str, values: list[int], same: list[int], clients: Clients
) -> None:
    for sent_case, meant in zip(cases(values, model), cases(same, model), strict=True):
        results = clients.all(sent_case)
        assert [code for code, _ in results] == ["OK"] * 3
        assert results == clients.all(meant)


def test_missing_list_is_rejected_if_the_input_is_required(clients: Clients) -> None:
    body = {"tower": "query", "requests": [{"features": {"user": 7}}]}
    case = Case("embed", "none", body, model="exact")
    results = clients.all(case)
    assert {code for code, _ in results} == {"INVALID_ARGUMENT"}
    assert all(message.startswith("features.history: no value") for _, message in results)
