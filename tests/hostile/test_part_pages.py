"""Pages of towers in parts that do not hold together: each is refused before anything of them runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import FormatError
from bundle.format.manifest import parse
from tests.hostile.page_changes import Page, sealed, setting

GOLDEN = Path(__file__).parents[1] / "golden/bundle/root/movies/1/manifest.json"


def reversed_parts(page: Page) -> None:
    page["towers"]["ranking"]["parts"].reverse()


def head_left_out(page: Page) -> None:
    del page["towers"]["ranking"]["parts"][-1]


def candidate_in_context(page: Page) -> None:
    page["towers"]["ranking"]["parts"][0]["inputs"][0]["features"][0] = "movie"


def feature_of_no_tower_input(page: Page) -> None:
    page["towers"]["ranking"]["parts"][0]["inputs"][0]["features"][0] = "city"


def trunk_per_context(page: Page) -> None:
    page["towers"]["ranking"]["parts"][1]["per"] = "context"


def one_name(page: Page) -> None:
    page["towers"]["ranking"]["parts"][1]["name"] = page["towers"]["ranking"]["parts"][2]["name"]


def two_sources(page: Page) -> None:
    page["towers"]["ranking"]["parts"][1]["inputs"][0]["feature"] = "movie"


@pytest.mark.parametrize(
    "change",
    [
        reversed_parts,
        head_left_out,
        candidate_in_context,
        feature_of_no_tower_input,
        trunk_per_context,
        one_name,
        two_sources,
        setting("towers.ranking.parts.0.per", "user"),
        setting("towers.ranking.parts.0.outputs.0.name", "trunk"),
        setting("towers.ranking.inputs.0", {"name": "user", "tensor": "trunk", "dtype": "float32", "shape": [None, 8]}),
        setting("towers.ranking.formula", "score ^"),
        setting("towers.ranking.formula", "like"),
    ],
)
def test_parts_that_do_not_hold_together_are_refused(change: Callable[[Page], Any]) -> None:
    page = json.loads(GOLDEN.read_bytes())
    parse(sealed(page))
    change(page)
    with pytest.raises(FormatError, match="manifest"):
        parse(sealed(page))
