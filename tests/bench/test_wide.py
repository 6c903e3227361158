"""Workload W with a tenth of its features, so that it never rots: many features, packed, in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from bundle.features import Column, open_features
from bundle.manifest import inputs_of
from bundle.staging import read_manifest
from service.engine.requests import Call, Target
from service.wire import json_bodies, messages
from tests.bench.wide import CANDIDATES, Wide, bare_ms, bodies, gains, weights, write_wide
from tests.service.running import Running


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "odd"])
def wide(request: pytest.FixtureRequest) -> Wide:
    return Wide(200, parts=True, odd=request.param)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, wide: Wide) -> Path:
    found = tmp_path_factory.mktemp("wide")
    write_wide(found, wide)
    return found


def expected(wide: Wide, directory: Path, body: dict[str, Any]) -> Any:
    """The scores, in float64, from features looked up one by one."""
    page = read_manifest(directory)
    reader = open_features(directory, page)
    sides = {}
    for role, sent, n in (("context", body["context"], 1), ("candidate", body["features"], CANDIDATES)):
        found = []
        for name, feature in page.features.items():
            if feature.role == role:
                columns = {}
                for read in inputs_of(name, feature):
                    values = np.atleast_1d(np.array(sent[read]))
                    columns[read] = Column(values, np.array([0, values.size]) if feature.kind == "bag" else None)
                found.append(reader.activation(name, columns, n).values.reshape(n, -1))
        sides[role] = np.concatenate(found, axis=1).astype(np.float64)
    first, second, last = weights(*wide.widths())
    return (np.maximum(sides["context"] @ first + sides["candidate"] @ second, 0) @ last)[:, 0]


def test_hundreds_of_features_are_ranked_as_the_model_says_by_both_forms(root: Path, wide: Wide) -> None:
    json, message = bodies(wide)
    service = Running(root)
    request, _ = json_bodies.read_ranking(json_bodies.parse(json), Target(wide.model))
    by_json = service.ask(service.engine.rank(request, Call("")))
    by_message = service.ask(service.engine.rank(messages.read_ranking(message), Call("")))
    assert by_json.scores.tobytes() == by_message.scores.tobytes()
    wanted = expected(wide, root / wide.model / "1", orjson.loads(json))
    np.testing.assert_allclose(by_json.scores, wanted, 1e-4, 1e-4)
    counted = {
        part: service.value("rowcast_part_examples_total", model=wide.model, tower="ranking", part=part)
        for part in ("context", "trunk")
    }
    assert counted == {"context": 2, "trunk": 2 * CANDIDATES}
    service.close()


def test_what_the_workload_measures_runs(root: Path, wide: Wide) -> None:
    assert bare_ms(wide, root / wide.model / "1") > 0
    assert set(gains(wide, root / wide.model / "1")) == {"packed", "looked up"}
