"""StringLookup and IntegerLookup of both Keras generations: a bundle finds the rows that the
layers give to the Embedding behind them, also for keys outside the vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import UnknownRejected
from bundle.features.columns import Column
from bundle.format.manifest import GraphIds
from export.front_end.specs import FeatureSpec
from export.graphs.loading import load_tensorflow, tf
from export.model_code.factories import load_factory
from tests.units.export.traced_models import IDS, MODELS, recipe, save_and_trace

TEXTS = ["red", "blue", "", "Red", "é", "x" * 70, "0", "green", *(f"key {n}" for n in range(40))]
NUMBERS = [7, 9, 0, -1, -(1 << 63), (1 << 63) - 1, 1 << 40, 5, *range(100, 140)]


@pytest.mark.parametrize("generation", [2, 3])
def test_lookup_layers_with_several_oov_rows_are_rules_with_the_layers_rows(
    generation: int, tmp_path: Path
) -> None:
    factory = f"lookup_layers.py:build_{generation}"
    inputs: dict[str, Any] = {"text": {"dtype": "string"}, "number": IDS}
    load_tensorflow()
    model = load_factory(factory, MODELS)()
    outputs = {name: name for name in model.layers_of}
    tower = {"role": "query", "outputs": outputs, "result": "string_1_plain"}
    code = {"factory": factory, "table_threshold": 0, "inline_bytes_max": 0}

    made = save_and_trace(recipe(factory, inputs, {"tower": tower}, {"code": code}), tmp_path)

    sent = {"text": Column(np.array(TEXTS, object)), "number": Column(np.array(NUMBERS))}
    compared = set()
    for name, spec in made.model.spec.features.items():
        assert isinstance(spec, FeatureSpec)
        assert isinstance(spec.rule, GraphIds)
        layer = model.layers_of[spec.entry.table]
        expected = layer(sent[spec.reads[0]].values.tolist()).numpy()
        rows, _ = made.reader.rows(name, sent, len(TEXTS))
        if spec.unknown is not None:
            assert spec.unknown.row is not None
            rows = np.where(rows < 0, spec.unknown.row, rows)
        np.testing.assert_array_equal(rows, expected, err_msg=spec.entry.table)
        compared.add(spec.entry.table)
    assert compared == set(model.layers_of)


@pytest.mark.parametrize("generation", [2, 3])
def test_keys_that_a_layer_rejects_are_rejected(generation: int, tmp_path: Path) -> None:
    factory = f"lookup_layers.py:build_strict_{generation}"
    inputs: dict[str, Any] = {"text": {"dtype": "string"}, "number": IDS}
    load_tensorflow()
    model = load_factory(factory, MODELS)()
    tower = {"role": "query", "outputs": {"string": "string", "integer": "integer"}}
    code = {"factory": factory, "table_threshold": 0, "inline_bytes_max": 0}
    job = recipe(factory, inputs, {"tower": tower | {"result": "string"}}, {"code": code})

    made = save_and_trace(job, tmp_path)

    known = {"text": ["blue", "red"], "number": [9, 7]}
    unknown = {"text": "Red", "number": 8}
    for name, spec in made.model.spec.features.items():
        assert isinstance(spec, FeatureSpec)
        (source,) = spec.reads
        layer = model.layers_of[spec.entry.table]
        kind = object if source == "text" else np.int64
        rows, _ = made.reader.rows(name, {source: Column(np.array(known[source], kind))}, 2)
        np.testing.assert_array_equal(rows, layer(known[source]).numpy())
        with pytest.raises(tf.errors.InvalidArgumentError):
            layer([unknown[source]])
        sent = {source: Column(np.array([unknown[source]], kind))}
        with pytest.raises(UnknownRejected):
            made.reader.activations([name], sent, 1)
