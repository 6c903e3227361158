"""Specifications, layouts and layers of jax-tpu-embedding itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from export.jax_models.feature_specs import StackPosition, read_feature_specs
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.models import sparsecore_ranker as ranker

pytest.importorskip("jax_tpu_embedding")

FACTORIES = Path(ranker.__file__).with_name("jax_tpu_embedding_ranker.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from google.protobuf import text_format
    from jax_tpu_embedding.sparsecore.lib.nn import embedding

    from tests.models import jax_tpu_embedding_ranker as trained

    root = tmp_path_factory.mktemp("package")
    ranker.write(root)
    cores = ranker.CORES // trained.DEVICES
    layout = embedding.create_proto_from_feature_specs(
        trained.feature_specs(), trained.DEVICES, cores
    )
    (root / "layout.textproto").write_text(text_format.MessageToString(layout))
    return root


def test_prepared_specifications_have_the_places_of_the_stacks() -> None:
    from tests.models import jax_tpu_embedding_ranker as trained

    tables = read_feature_specs(trained.feature_specs()).tables
    assert tables.keys() == ranker.TABLES.keys()
    for name, table in ranker.TABLES.items():
        rows = sum(
            stacked.padded_rows
            for stacked in ranker.TABLES.values()
            if stacked.stack == table.stack
        )
        position = StackPosition(table.stack, rows, table.padded_rows, table.offset, table.rotation)
        assert tables[name].stack_position == position
        assert (tables[name].rows, tables[name].dim) == (table.rows, table.dim)
        assert tables[name].combiner == table.combiner


@pytest.mark.parametrize("factory", ["build", "build_linen", "build_nnx"])
def test_model_is_exported_and_equals_jax(folder: Path, factory: str) -> None:
    page = ranker.recipe(model=factory, code={"factory": f"{FACTORIES}:{factory}"})
    prepared = bundle_job.prepare(ExportJob.model_validate(page), folder, ExportSettings())
    done = bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    assert set(done.manifest.tables) == set(ranker.TABLES)
    assert done.manifest.tables["users"].source.layout == "sparse_core"
