"""A whole export job of the model Movies in two_towers.py: recipe, vocabulary and corpus, and what
it should write.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from bundle.format.manifest import Manifest
from bundle.storage import catalog, integrity
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from export.towers.savedmodels import content_of_saved_model
from tests.units.export.traced_models import MODELS, movies_recipe

MOVIES = 40
MOVIE_IDS = [100 + 7 * row for row in range(MOVIES)]
"""What callers send for the rows of the movie table."""

Recipe = dict[str, Any]
Facts = tuple[dict[str, Any], dict[str, bytes]]
"""A manifest, and the files by their paths."""


def genres_of(row: int) -> list[int]:
    return [row % 9, (row * row + 3) % 9][: 1 + row % 2]


def year_of(row: int) -> int:
    return 1980 + row % 30


def title_of(row: int) -> str:
    return f'Movie "{row}", The'


def write_corpus(path: Path, rows: Mapping[int, Mapping[str, str]] | None = None) -> None:
    """Writes the corpus as CSV; `rows` replaces cells by row and column."""
    lines = ["movieId,title,genres,year"]
    for row, movie in enumerate(MOVIE_IDS):
        cells = {
            "movieId": str(movie),
            "title": title_of(row),
            "genres": "|".join(str(genre) for genre in genres_of(row)),
            "year": str(year_of(row)),
        } | dict((rows or {}).get(row, {}))
        lines.append(
            ",".join(
                '"' + cells[name].replace('"', '""') + '"'
                for name in ("movieId", "title", "genres", "year")
            )
        )
    path.write_text("\n".join(lines) + "\n")


def example_requests(count: int = 24) -> list[dict[str, Any]]:
    """Raw examples, as clients send them."""
    return [
        {
            "user_id": row % 10,
            "history": MOVIE_IDS[row : row + row % 4],
            "hour": row % 24,
            "movie_id": MOVIE_IDS[row % MOVIES],
            "genres": genres_of(row),
            "year": row / 30,
        }
        for row in range(count)
    ]


def write_examples(project: Path, examples: list[dict[str, Any]]) -> None:
    """Writes the examples beside a recipe that names them."""
    (project / "examples.jsonl").write_text(
        "".join(json.dumps(example) + "\n" for example in examples)
    )


def recipe_of(checkpoint: Path) -> Recipe:
    parts = movies_recipe().model_dump(
        mode="json", include={"inputs", "towers"}, exclude_unset=True
    )
    return {
        "model": "movies",
        "checkpoint": {"path": str(checkpoint), "object_path": "model"},
        "code": {"factory": "two_towers.py:build_movies"},
        "output": {"root": "bundles"},
        **parts,
        "vocabularies": {"movies": {"file": "movie_ids.txt", "dtype": "int64"}},
        "features": {
            "movie_id": {
                "role": "candidate",
                "ids": {"kind": "vocabulary", "vocabulary": "movies"},
            },
            "history": {"ids": {"kind": "vocabulary", "vocabulary": "movies"}, "default": []},
            "genres": {"role": "candidate", "default": []},
            "year": {"role": "candidate"},
        },
        "corpora": {
            "movies": {
                "file": "movies.csv",
                "id": "movieId",
                "features": {"movie_id": "movieId", "genres": "genres", "year": "year"},
                "attributes": ["title", "year"],
                "filters": ["genres", "year"],
            }
        },
        "indexes": {
            "movies": {"corpus": "movies", "query_tower": "query", "candidate_tower": "candidate"}
        },
        "verify": {"count": 24},
    }


def toml(value: Any) -> str:
    """A value as inline TOML."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {toml(part)}" for key, part in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(toml(part) for part in value) + "]"
    return json.dumps(value)


def changed(recipe: Recipe, path: str, value: Any) -> Recipe:
    """The recipe with one key, `a.b.c`, set; None takes it out."""
    parts = copy.deepcopy(recipe)
    *parents, last = path.split(".")
    section = parts
    for name in parents:
        section = section.setdefault(name, {})
    if value is None:
        del section[last]
    else:
        section[last] = value
    return parts


def write_project(directory: Path, recipe: Recipe) -> Path:
    """Writes all that a job reads but the checkpoint; returns the recipe's path."""
    directory.mkdir(parents=True, exist_ok=True)
    factory = recipe.get("code", {}).get("factory", "two_towers.py:build_movies")
    shutil.copy(MODELS / factory.partition(":")[0], directory)
    (directory / "movie_ids.txt").write_text("".join(f"{movie}\n" for movie in MOVIE_IDS))
    write_corpus(directory / "movies.csv")
    path = directory / "recipe.toml"
    path.write_text(
        "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in recipe.items())
    )
    return path


def run_arguments(project: Path) -> list[str]:
    """Returns the command that writes version 1."""
    return ["run", str(project), "--version", "1"]


def edit(project: Path, file: str, before: str, after: str) -> None:
    """Replaces text in a file beside a recipe, or in the recipe itself; its times stay as they
    were.
    """
    directory = project.parent
    shutil.rmtree(directory / "__pycache__", ignore_errors=True)  # Python goes by sizes and times
    path = directory / file
    status = path.stat()
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def export(
    recipe: Path,
    version: int | None = None,
    progress: Progress | None = None,
    with_changes: Path | None = None,
) -> Published:
    """Runs a job in this process."""
    settings = ExportSettings(with_changes=with_changes, load=False)
    prepared = bundle_job.prepare(read_recipe(recipe), recipe.parent, settings, version)
    return bundle_job.run(prepared, settings, progress or Progress(Console(quiet=True)))


def visible(root: Path) -> list[str]:
    """All files and directories under a root but the hidden ones of a model."""
    actual = [path.relative_to(root) for path in root.rglob("*")] if root.is_dir() else []
    return sorted(
        str(path) for path in actual if len(path.parts) > 1 and not path.parts[1].startswith(".")
    )


def hidden(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("*/.*"))


def facts(bundle: Path) -> Facts:
    """The manifest and files of a bundle without what differs from run to run.

    That is when it began, costs of searches, and the numbers that TensorFlow gives to the functions
    of a SavedModel.
    """
    manifest: Manifest = catalog.read_manifest(bundle)
    integrity.check_files(bundle, manifest, "full")
    content = manifest.model_dump(mode="json")
    content["created"] = ""
    for index in content["indexes"].values():
        for point in index["curve"]:
            point["relative_cost"] = 0
    numbered = ("/saved_model.pb", "/fingerprint.pb")
    content["files"] = [file for file in content["files"] if not file["path"].endswith(numbered)]
    files = {
        str(path.relative_to(bundle)): path.read_bytes()
        for path in sorted(bundle.rglob("*"))
        if path.is_file() and path.name != "manifest.json" and not str(path).endswith(numbered)
    }
    for path in bundle.rglob("saved_model.pb"):
        files[str(path.parent.relative_to(bundle))] = "".join(
            content_of_saved_model(path.parent)
        ).encode()
    return content, files
