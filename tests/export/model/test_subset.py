"""Parts of a recipe: which towers a wish means, what they need, and what is provably out of their reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.errors import UsageError
from export.graph.specs import FeatureSpec, ModelSpec, TableFacts, TensorSpec, TowerSpec
from export.model.subset import LeftOut, Wanted, choose_towers, left_out, read_tables_option, reduced, split_names
from export.recipe.schema import ExportJob
from tests.export.commands import Command
from tests.export.exporting import recipe_of


def tower(name: str, *features: str) -> TowerSpec:
    inputs = tuple(TensorSpec(feature, "float32", (None, 4), feature) for feature in features)
    return TowerSpec(name, "ranking", "", features, {}, inputs, (), "score")


TOWERS = {"query": ("user",), "candidate": ("item",), "ranking": ("user", "item", "ad")}
MODEL = ModelSpec(
    {name: TableFacts(name, name, 10, 4) for name in ("users", "items", "ads")},
    {
        feature: FeatureSpec(feature, table, "single", "dense")
        for feature, table in (("user", "users"), ("item", "items"), ("ad", "ads"))
    },
    {name: tower(name, *features) for name, features in TOWERS.items()},
)


@pytest.mark.parametrize(
    ("wanted", "towers"),
    [
        (Wanted(towers=("ranking",)), ("ranking",)),
        (Wanted(tables=("users",)), ("query",)),
        (Wanted(tables=("items", "users")), ("query", "candidate")),
        (Wanted(tables=("users", "items", "ads")), ("query", "candidate", "ranking")),
        (Wanted(towers=("candidate",), tables=("items", "ads")), ("candidate",)),
    ],
)
def test_choose_towers_takes_those_that_do_with_what_is_wanted(wanted: Wanted, towers: tuple[str, ...]) -> None:
    assert choose_towers(MODEL, wanted) == towers


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Wanted(towers=("rank",)), "no tower 'rank'; the recipe's: candidate, query, ranking"),
        (Wanted(tables=("user",)), "no table 'user'; the recipe's: ads, items, users"),
        (Wanted(tables=("ads",)), "no tower does with tables ads alone .*ranking reads ads, items, users"),
        (Wanted(towers=("ranking",), tables=("users",)), "tower 'ranking' reads table 'ads' too"),
    ],
)
def test_choose_towers_what_cannot_be_is_told_with_what_reads_what(wanted: Wanted, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        choose_towers(MODEL, wanted)


def test_left_out_names_each_table_with_the_towers_that_read_it() -> None:
    assert left_out(MODEL, ["query", "candidate"]) == LeftOut(("ranking",), {"ads": ("ranking",)})


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([], (None, ())),
        (["link"], ("link", ())),
        (["a,b", "inline", "b, c"], ("inline", ("a", "b", "c"))),
        (["linked"], (None, ("linked",))),
    ],
)
def test_read_tables_option_tells_ways_from_names(given: list[str], read: tuple[Any, ...]) -> None:
    assert read_tables_option(given) == read


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(UsageError, match="--tables copy and --tables link"):
        read_tables_option(["copy", "link"])
    with pytest.raises(UsageError, match="--towers 'a,,b' was given"):
        split_names("--towers", "a,,b")


def test_reduced_recipe_drops_what_only_other_towers_need() -> None:
    recipe = recipe_of(Path("ckpt"))
    job = ExportJob.model_validate(
        recipe
        | {
            "towers": {name: {"role": "ranking"} for name in TOWERS},
            "features": {"item": {"role": "candidate"}, "ad": {"role": "context"}},
            "tables": {"ads": {"shard_rows": 5}, "items": {"shard_rows": 5}},
            "candidates": {"movies": recipe["candidates"]["movies"] | {"features": {"item": "movieId", "ad": "ad"}}},
            "indexes": {},
        }
    )
    part = reduced(job, MODEL, ["candidate"])
    assert (list(part.towers), list(part.features), list(part.tables)) == (["candidate"], ["item"], ["items"])
    assert part.candidates["movies"].features == {"item": "movieId"}
    assert part.vocabularies == {}
    assert reduced(job, MODEL, ["query"]).candidates == {}


def test_run_with_one_tower_exports_its_tables_alone(command: Command, project: Path) -> None:
    told = command("plan", project, "--towers", "query", "--json").page
    assert set(told["towers"]) == {"query"}
    assert told["left_out"]["towers"]
    assert told["left_out"]["tables"]
    assert not set(told["left_out"]["tables"]) & set(told["tables"])
    page = command("run", project, "--towers", "query", "--json").page
    assert set(page["verification"]["tables"]) == set(told["tables"])
    shown = command("plan", project, "--towers", "query")
    assert "operations kept reaches it" in " ".join(shown.out.split())
