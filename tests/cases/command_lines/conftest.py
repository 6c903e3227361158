"""The command line and the checkpoint of the export's own tests."""

from tests.units.export.conftest import (
    command,
    forked,
    movies,
    project,
    recipe,
    small_recipe,
    undisturbed,
)

__all__ = ["command", "forked", "movies", "project", "recipe", "small_recipe", "undisturbed"]
