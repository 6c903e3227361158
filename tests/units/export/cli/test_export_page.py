"""docs/reference/export.md names every field of what the commands print as JSON, and
every setting.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bundle.storage import catalog
from export.cli.published_report import published_json
from export.jobs.staged import Published
from export.recipe.settings import ExportSettings
from tests.units.export.commands import Command
from tests.units.export.traced_models import TracedCheckpoint

TEXT = Path(__file__).parents[4].joinpath("docs/reference/export.md").read_text()
WORDS = set(re.findall(r"`(\w+)`", TEXT))


@pytest.mark.parametrize("name", ["inspect", "plan", "run", "verify"])
def test_export_docs_name_the_fields_of_each_command(
    command: Command, undisturbed: Path, movies: TracedCheckpoint, name: str
) -> None:
    if name == "run":
        output = published_json(Published(undisturbed, catalog.read_manifest(undisturbed), ())) | {
            "seconds": {}
        }
    else:
        documented = {
            "inspect": movies.prefix,
            "plan": undisturbed.parents[2] / "recipe.toml",
            "verify": undisturbed,
        }
        output = command(name, documented[name], "--json").json
    parts = [output, *output["tables"].values()] if name in ("inspect", "plan") else [output]
    parts += output["towers"].values() if name == "plan" else []
    parts += [*output["slots"], *output["dense"]] if name == "inspect" else []
    section = re.search(rf"^\*\*`{name}`.*?(?=\n\n|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert section
    assert {field for part in parts for field in part} <= set(re.findall(r"`(\w+)`", section[0]))


def test_export_docs_name_every_setting() -> None:
    assert {f"ROWCAST_EXPORT_{name.upper()}" for name in ExportSettings.model_fields} <= WORDS
