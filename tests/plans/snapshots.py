"""Plans that are recorded in files, compared with those of today."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from tests.plans.plan_texts import plan_text
from tests.plans.planned_models import PlannedModel

SNAPSHOTS = Path(__file__).with_name("snapshots")
SUFFIX = ".txt"


def recorded(directory: Path) -> set[str]:
    """Returns the names of the plans that a directory has."""
    return {file.name.removesuffix(SUFFIX) for file in directory.iterdir()}


def difference(directory: Path, name: str, text: str) -> str:
    """Returns a unified diff from the recorded plan to that of today; "" if they are equal."""
    file = directory / f"{name}{SUFFIX}"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = difflib.unified_diff(
        before.splitlines(),
        text.splitlines(),
        f"recorded plan of {name}",
        f"plan of {name}",
        lineterm="",
    )
    return "\n".join(lines)


def update(
    directory: Path, models: Mapping[str, PlannedModel], patterns: Sequence[str]
) -> Iterator[str]:
    """Records the plans that changed, and deletes those of models that are gone.

    Args:
      directory: The directory of the recorded plans.
      models: All models by the names of their plans.
      patterns: Names of the plans that are compared, as a shell matches them; none: all.

    Yields:
      What was done, a line for each plan that is not as before.
    """
    for name in sorted(recorded(directory) - models.keys()):
        (directory / f"{name}{SUFFIX}").unlink()
        yield f"{name}: deleted, since no model has this plan"
    for name in chosen(models, patterns or ["*"]):
        model = models[name]
        missing = missing_modules(model)
        if missing:
            yield f"{name}: kept, since {', '.join(missing)} cannot be imported"
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = plan_text(model, Path(folder))
        if difference(directory, name, text):
            (directory / f"{name}{SUFFIX}").write_text(text, encoding="utf-8")
            yield f"{name}: recorded"


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Returns the names that a pattern matches."""
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def missing_modules(model: PlannedModel) -> list[str]:
    """Returns what a model requires and this environment lacks."""
    return [module for module in model.requires if find_spec(module.partition(".")[0]) is None]
