"""What golden tests of small rankers share: their recipe, and what is ranked, in the order in which it was sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from rowcast_client import RankedCandidate

RECIPE = """
model = "{models}"
checkpoint = {{ path = "ckpt", object_path = "model" }}
code = {{ factory = "{file}:build_{name}", table_threshold = 0 }}
output = {{ root = "bundles" }}
towers.ranking = {{ role = "ranking", outputs = {{ {outputs} }}, result = "{result}" }}
"""


def write_recipe(directory: Path, models: ModuleType, name: str, lines: Iterable[str], heads: Sequence[str]) -> Path:
    """Writes the recipe of `build_<name>` of a module, whose checkpoint lies beside it; the first head counts."""
    told = {"models": models.__name__.rpartition(".")[2], "file": models.__file__, "name": name}
    outputs = ", ".join(f'{head} = "{head}"' for head in heads)
    recipe = directory / "recipe.toml"
    recipe.write_text("\n".join([RECIPE.format(**told, outputs=outputs, result=heads[0]), *lines]))
    return recipe


def as_sent(ranked: Iterable[RankedCandidate]) -> list[RankedCandidate]:
    """Returns ranked candidates in the order of the request."""
    return sorted(ranked, key=lambda each: each.position)
