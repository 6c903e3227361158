"""The models in examples/: folders as their trainings leave them, but for the training."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from examples import trained
from examples.watching import Watching
from export.model_code.factories import load_factory
from export.recipe.schema import CorpusSection, ExportJob, read_recipe
from tests.cases.models.checkpoints import (
    Build,
    Write,
    write_keras_tree,
    write_objects,
    write_parameters,
    write_session,
    zeros,
)
from tests.cases.models.planned_models import PlannedModel, Project

EXAMPLES = Path(trained.__file__).parent
WriteInputs = Callable[[Path], Any]
"""(folder of the example): writes what the recipe names beside the checkpoint, and returns the
sizes of the model.
"""


def example_plans() -> Iterator[PlannedModel]:
    """Yields a plan for each example."""
    towers = {"dim": 4, "hidden": 8}
    yield _planned("dlrm", _tiny("dlrm"))
    yield _planned("dcn_v2", _tiny("dcn_v2"))
    yield _planned("wide_deep", _tiny("wide_deep"))
    yield _planned("ple", _write_inputs_of_ple)
    yield _planned("cotrained", _watched("cotrained", retrieval_dim=4, ranking_dim=3, hidden=(8,)))
    yield _planned("one_call_two_tower", _watched("one_call_two_tower", dim=4, hidden=(8,)))
    yield _planned("sequence", _watched("sequence", dim=4, length=5, heads=2, blocks=1, top=(8,)))
    yield _planned("flax_dlrm", _tiny("flax_dlrm"), write_parameters)
    yield _planned("flax_two_tower", _watched("flax_two_tower", **towers), write_parameters)
    yield _planned("hstu", _watched("hstu", dim=4, length=10, blocks=1), write_parameters)
    yield _planned("jax_tpu_embedding", _watched("jax_tpu_embedding", **towers), _write_stacks)
    yield _planned("keras3_jax", _watched("keras3_jax", **towers), write_keras_tree)
    yield PlannedModel("examples.snap_tf1", "examples/snap_tf1", _write_snap)
    yield PlannedModel("examples.movielens", "examples/movielens", _write_movielens)


def _planned(
    package: str,
    write_inputs: WriteInputs,
    write: Write = write_objects,
) -> PlannedModel:
    def write_project(folder: Path) -> Project:
        _write_files(package, folder, write_inputs(folder))
        return _project(folder, write)

    return PlannedModel(f"examples.{package}", f"examples/{package}", write_project)


def _write_files(package: str, folder: Path, sizes: Any) -> None:
    nothing_asked = trained.ReferenceRequests((), {}, {"": np.zeros(0)})
    trained.write_files(folder, EXAMPLES / package, sizes, nothing_asked)


def _project(folder: Path, write: Write) -> Project:
    job = read_recipe(folder / "recipe.toml")
    for section in (*job.corpora.values(), *job.contexts.values()):
        _complete(folder / str(section.file), section, job)
    checkpoint = (folder / job.checkpoint.path).resolve()
    checkpoint.mkdir(parents=True)
    write(load_factory(job.code.factory, folder), job, checkpoint)
    return Project(job, folder)


def _tiny(package: str) -> WriteInputs:
    """Returns what needs no files, and has the sizes of the tiny version."""
    return lambda _folder: import_module(f"examples.{package}.train").SIZES["tiny"]


def _watched(package: str, **widths: Any) -> WriteInputs:
    """Returns what writes the vocabularies and the corpus of movies, and knows their sizes."""

    def write(folder: Path) -> Any:
        watching = Watching("tiny", history=5)
        watching.write_catalogue(folder)
        counts = {"users": watching.users, "movies": watching.movies, "genres": watching.genres}
        kind = import_module(f"examples.{package}.model").Sizes
        known = {field.name for field in fields(kind)}
        return kind(**{name: counts[name] for name in counts.keys() & known}, **widths)

    return write


def _write_inputs_of_ple(folder: Path) -> Any:
    for name in ("items", "users"):
        (folder / f"{name}.parquet").touch()
    return _tiny("ple")(folder)


def _write_snap(folder: Path) -> Project:
    sizes = _tiny("snap_tf1")(folder)
    _write_files("snap_tf1", folder, sizes)
    (folder / "ads.parquet").touch()
    import_module("examples.snap_tf1.data").write_inputs(folder / "recipe.toml", sizes)
    return _project(folder, write_session)


def _write_stacks(build: Build, _job: ExportJob, checkpoint: Path) -> None:
    """Saves tables in the stacks of SparseCores, and the layout of these."""
    shapes, _, specs = build()
    tables = {}
    for spec in specs.values():
        table = spec["table_spec"]
        shape = (table["vocabulary_size"], table["embedding_dim"])
        tables[table["name"]] = np.zeros(shape, np.float32)
    train = import_module("examples.jax_tpu_embedding.train")
    folder = checkpoint.parent
    sizes = train.Sizes(**json.loads((folder / trained.SIZES_FILE).read_text()))
    train.save(folder, sizes, {"dense": zeros(shapes), "tables": tables}, tables)


def _complete(path: Path, section: CorpusSection, job: ExportJob) -> None:
    """Adds the columns that a file of candidates or contexts lacks; plans read its first rows."""
    table = pa.table({section.id: [1]})
    if path.stat().st_size:
        table = parquet.read_table(path)
    values = {"string": "a", "float32": 1.0}
    cells: dict[str, Any] = dict.fromkeys(section.stored.attributes, "a")
    for name, column in section.features.items():
        part = job.inputs[name]
        cells[column] = values.get(part.dtype, 1)
        if part.kind != "dense" or part.shape:
            cells[column] = [cells[column]] * math.prod(part.shape)
    for column, cell in cells.items():
        if column not in table.column_names:
            table = table.append_column(column, pa.array([cell] * table.num_rows))
    parquet.write_table(table, path)


def _write_movielens(folder: Path) -> Project:
    """Writes what the recipe and the model find in build/demo, from their folder."""
    source = folder / "examples" / "movielens"
    source.mkdir(parents=True)
    for name in ("model.py", "recipe.toml"):
        shutil.copyfile(EXAMPLES / "movielens" / name, source / name)
    demo = folder / "build" / "demo"
    demo.mkdir(parents=True)
    (demo / "examples.jsonl").touch()
    (demo / "popular.csv").write_text("movie_id\n1\n")
    _watched("movielens")(demo).write(demo)
    return _project(source, write_objects)
