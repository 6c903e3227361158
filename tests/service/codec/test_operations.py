"""The readers accept every request body shown in docs/reference/api.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine.requests import Target

SETTINGS = ServiceSettings(root=Path.cwd())
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "api.md"
SHOWN = re.findall(r"<!-- (\w+) -->\n```json\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


def test_api_page_shows_a_body_of_each_call() -> None:
    assert {call for call, _ in SHOWN} == set(OPERATIONS)


@pytest.mark.parametrize(("call", "body"), SHOWN)
def test_body_on_the_api_page_is_accepted(call: str, body: str) -> None:
    request, several = OPERATIONS[call].read(body.encode(), False, Target("movielens"), SETTINGS)
    assert request.target.model == "movielens"
    assert several == ("requests" in json.loads(body))
