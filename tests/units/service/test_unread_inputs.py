"""Inputs that a model has and no tower reads: every call and transport ignores them, and rejects
names that are not declared, as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bundles.small import write_small_bundle
from tests.units.service.cases import LIMITS, Case
from tests.units.service.clients import Clients
from tests.units.service.running import RunningService

UNREAD = {"length": 3, "words": ["a", "b"]}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, unread_inputs=tuple(UNREAD))
    service = RunningService(root, **LIMITS)
    clients = Clients(service)
    yield clients
    clients.close()
    service.close()


def cases(more: dict[str, Any]) -> list[Case]:
    """Returns requests of every call that sends features, each with these inputs, too."""
    context = {"user": 7, **more}
    candidates = {name: [value] * 2 for name, value in more.items()}
    candidates |= {"movie": [1000, 1007], "genres": [[], []], "year": [0.5, 0.75]}
    bodies: dict[str, dict[str, Any]] = {
        "retrieve": {"requests": [{"context": context}, {"context": context}], "k": 3},
        "recommend": {"requests": [{"context": context}], "k": 3},
        "rank": {"requests": [{"context": context, "candidate_features": candidates}]},
        "embed": {"tower": "query", "requests": [{"features": context}] * 2},
    }
    return [Case(call, "inputs", body) for call, body in bodies.items()]


def test_unread_inputs_change_no_response(clients: Clients) -> None:
    for sent_case, without in zip(cases(UNREAD), cases({}), strict=True):
        responses = clients.all(sent_case)
        assert [code for code, _ in responses] == ["OK"] * 3
        assert responses == clients.all(without)


def test_name_that_nobody_declared_is_rejected_beside_unread_inputs(clients: Clients) -> None:
    for case in cases({**UNREAD, "lenght": 3}):
        for code, message in clients.all(case):
            assert code == "INVALID_ARGUMENT"
            assert "has the unknown name 'lenght'; " in message
