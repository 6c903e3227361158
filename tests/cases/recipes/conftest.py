"""The command line and the checkpoint of the export's own tests."""

from tests.units.export.conftest import command, movies, project, recipe

__all__ = ["command", "movies", "project", "recipe"]
