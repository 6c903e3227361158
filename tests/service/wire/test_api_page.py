"""The bodies shown on docs/api.md are bodies that the readers take."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from service.engine.requests import Target
from service.wire.operations import OPERATIONS

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
SHOWN = re.findall(r"```json (\w+)\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


def test_page_shows_a_body_for_each_call() -> None:
    assert {call for call, _ in SHOWN} == set(OPERATIONS)


@pytest.mark.parametrize(("call", "body"), SHOWN)
def test_body_on_the_page_is_taken(call: str, body: str) -> None:
    request, several = OPERATIONS[call].read_json(json.loads(body), Target("movielens"))
    assert request.target.model == "movielens"
    assert several == ("requests" in json.loads(body))
