"""Models whose code is a script or a notebook that trains: the exporter takes the definitions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from export.model_code.factories import factory_of
from export.recipe.schema import read_recipe
from tests.cases.models.checkpoints import write_objects
from tests.cases.models.planned_models import PlannedModel, Project, source_of
from tests.units.export.notebooks import write_notebook
from tests.units.export.traced_models import MODELS

NAME = "training_script"
NEXT_CELL = "\n\n\n"
RECIPE = """
model = "ranking"

[checkpoint]
path = "checkpoint"
object_path = "model"

[code]
factory = "{file}:RankingModel"
arguments.num_users = 20
names.genres = {{ vocabulary = "genres" }}
table_threshold = 2

[vocabularies.genres]
file = "genres.txt"

[inputs]
user = {{ dtype = "int32" }}
genre = {{ dtype = "string" }}

[features.genre]
role = "candidate"

[towers.ranking]
role = "ranking"

[output]
root = "bundles"
"""


def script_plans() -> Iterator[PlannedModel]:
    """Yields plans of one model: a class of the script, and one of a notebook of the same code."""
    yield PlannedModel(f"{NAME}.class", source_of(NAME), write_script)
    yield PlannedModel(f"{NAME}.notebook", source_of(NAME), _write_notebook)


def write_script(folder: Path) -> Project:
    """Writes the script, its recipe and a checkpoint."""
    shutil.copyfile(MODELS / f"{NAME}.py", folder / f"{NAME}.py")
    return _project(folder, f"{NAME}.py")


def _write_notebook(folder: Path) -> Project:
    cells = (MODELS / f"{NAME}.py").read_text().split(NEXT_CELL)
    write_notebook(folder / f"{NAME}.ipynb", ["!pip install keras\n%matplotlib inline", *cells])
    return _project(folder, f"{NAME}.ipynb")


def _project(folder: Path, file: str) -> Project:
    (folder / "genres.txt").write_text("comedy\ndrama\nwestern\n")
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(file=file))
    job = read_recipe(recipe)
    checkpoint = folder / job.checkpoint.path
    checkpoint.mkdir()
    write_objects(factory_of(job, folder), job, checkpoint)
    return Project(job, folder)
