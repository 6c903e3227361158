"""Specifications, layouts and layers of jax-tpu-embedding itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import sparsecore_ranker as ranker
from tests.units.export.job_runs import publish

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


@pytest.mark.parametrize("factory", ["build", "build_linen", "build_nnx"])
def test_model_is_exported_and_equals_jax(folder: Path, factory: str) -> None:
    page = ranker.recipe(model=factory, code={"factory": f"{FACTORIES}:{factory}"})
    tables = publish(page, folder).manifest.tables
    assert set(tables) == set(ranker.TABLES)
    assert tables["users"].source.layout == "sparse_core"
