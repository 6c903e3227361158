"""Factorisation machines over matrices of ids: served over both transports, they equal what the trained model gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rowcast_client import Client

from bundle.format.manifest import EmbeddedFeature
from export.frameworks.loading import load_tensorflow
from tests.e2e.process import Process
from tests.export.exporting import export
from tests.golden import field_models
from tests.golden.rankers import as_sent, write_recipe

tf = load_tensorflow()
N = 24
INPUTS: dict[str, dict[str, str]] = {
    "fm": {"ids": '{ dtype = "int64", shape = [26] }'},
    "deepfm": {"row": '{ dtype = "float32", shape = [39] }'},
    "functional": {"ids": '{ dtype = "int32", shape = [26] }', "item": '{ dtype = "int32" }'},
}
"""Of each model; all are the candidate's."""
TABLES = {
    "fm": {"factors": field_models.ROWS, "linear": field_models.ROWS},
    "deepfm": {"table": field_models.ROWS, "buckets": 78},
    "functional": {"first": 50, "shared": int(field_models.SIZES.max())},
}
FEATURES = {
    "fm": {"ids[0]@factors", "ids[25]@linear"},
    "deepfm": {"row@values", "row[0]@buckets", "row[38]@table"},
    "functional": {"ids[0]@first", "ids[7]@shared", "item"},
}


def inputs(model: str) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(11)
    ids = random.integers(0, field_models.SIZES, (N, field_models.FIELDS))
    if model == "deepfm":
        numbers = random.lognormal(0, 2, (N, field_models.NUMBERS)) * random.choice([1, 1, 1, -1], (N, 1))
        return {"row": np.concatenate([numbers, ids + random.choice([0, 0.5], ids.shape)], 1).astype(np.float32)}
    found = {"ids": ids if model == "fm" else ids.astype(np.int32)}
    return found if model == "fm" else {**found, "item": ids[:, 2].astype(np.int32)}


@pytest.mark.parametrize("name", list(INPUTS))
def test_fields_served_over_both_transports_equal_the_trained_model(name: str, tmp_path: Path) -> None:
    tf.random.set_seed(3)
    model, sent = getattr(field_models, f"build_{name}")(), inputs(name)
    trained = model({each: tf.constant(value) for each, value in sent.items()})["score"].numpy()
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt" / "model"))
    lines = [f"inputs.{each} = {page}" for each, page in INPUTS[name].items()]
    lines += [f'features.{each}.role = "candidate"' for each in INPUTS[name]]
    page = export(write_recipe(tmp_path, field_models, name, lines, ["score"])).page
    assert {table: each.rows for table, each in page.tables.items()} == TABLES[name]
    assert {form.kind for form in page.towers["ranking"].forms} == {"saved_model", "litert"}
    read = [each for each in page.features.values() if isinstance(each, EmbeddedFeature) and each.places is not None]
    assert {each.places for each in read} == {39 if name == "deepfm" else 26}
    assert FEATURES[name] <= set(page.features)
    service = Process(tmp_path / "bundles")
    try:
        service.event("version_available")
        for transport in ("http", "grpc"):
            with Client(f"{transport}://127.0.0.1:{service.ports[transport]}") as client:
                found = client.rank({}, features={each: value.tolist() for each, value in sent.items()})[0]
                scores = [item.score for item in as_sent(found)]
                np.testing.assert_allclose(scores, trained, rtol=1e-5, atol=1e-5)
        assert "libtensorflow" not in Path(f"/proc/{service.process.pid}/maps").read_text()
    finally:
        service.kill()
