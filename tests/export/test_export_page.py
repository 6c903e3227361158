"""docs/reference/export.md names every field of what the commands print as JSON, and every setting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bundle.storage import staging
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.cli import plan_page, published_page
from export.cli.inspect import inventory_json
from export.jobs import bundle_job
from export.jobs.staged import Published
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from export.verify.audit import audit
from tests.export.commands import Command
from tests.export.cutting import Cut

TEXT = Path(__file__).parents[2].joinpath("docs/reference/export.md").read_text()


@pytest.fixture(scope="session")
def pages(undisturbed: Path, movies: Cut) -> dict[str, dict[str, Any]]:
    recipe = undisturbed.parents[2] / "recipe.toml"
    prepared = bundle_job.prepare(read_recipe(recipe), recipe.parent, ExportSettings())
    published = Published(undisturbed, staging.read_manifest(undisturbed), ())
    return {
        "inspect": inventory_json(recognise(open_checkpoint(movies.prefix))),
        "plan": plan_page.plan_json(prepared),
        "run": published_page.published_json(published) | {"seconds": {}},
        "verify": audit(undisturbed).to_json(),
    }


@pytest.mark.parametrize("command", ["inspect", "plan", "run", "verify"])
def test_export_page_names_the_fields_of_each_command(pages: dict[str, dict[str, Any]], command: str) -> None:
    told = re.search(rf"^\*\*`{command}`.*?(?=\n\n|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert told
    named = set(re.findall(r"`(\w+)`", told[0]))
    page = pages[command]
    assert set(page) <= named
    if command in ("inspect", "plan"):
        assert set(next(iter(page["tables"].values()))) <= named
    if command == "plan":
        assert set(next(iter(page["towers"].values()))) <= named
    if command == "inspect":
        assert {field for each in (*page["slots"], *page["dense"]) for field in each} <= named


def test_export_page_names_every_setting() -> None:
    assert {f"ROWCAST_EXPORT_{name.upper()}" for name in ExportSettings.model_fields} <= set(
        re.findall(r"`(\w+)`", TEXT)
    )


def test_plan_variable_that_is_no_setting_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWCAST_EXPORT_WORKRES", "1")
    done = command("plan", tmp_path / "none.toml")
    assert done.code == 2
    assert "sets ROWCAST_EXPORT_WORKRES, which is no setting; they are ROWCAST_EXPORT_BUDGET_BYTES, " in done.err


def test_inspect_json_with_an_error_leaves_stdout_empty(command: Command, tmp_path: Path) -> None:
    done = command("inspect", tmp_path / "none", "--json")
    assert (done.code, done.out) == (3, "")
    assert done.err.count("\n") == 1
