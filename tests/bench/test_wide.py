"""Workload W with a tenth of its features, so that it never rots: many features, packed, in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from bundle.features import Column, open_features
from bundle.staging import read_manifest
from service.engine.requests import Call, Target
from service.wire import json_bodies, messages
from tests.bench.wide import CANDIDATES, Wide, bare_ms, bodies, gains, weights, write_wide
from tests.service.running import Running

WIDE = Wide(200, parts=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("wide")
    write_wide(found, WIDE)
    return found


def expected(directory: Path, body: dict[str, Any]) -> Any:
    """The scores, in float64, from features looked up one by one."""
    page = read_manifest(directory)
    reader = open_features(directory, page)
    sides = {}
    for role, sent, n in (("context", body["context"], 1), ("candidate", body["features"], CANDIDATES)):
        found = []
        for name, feature in page.features.items():
            if feature.role == role:
                values = np.atleast_1d(np.array(sent[name]))
                offsets = np.array([0, values.size]) if feature.kind == "bag" else None
                found.append(reader.activation(name, {name: Column(values, offsets)}, n).values.reshape(n, -1))
        sides[role] = np.concatenate(found, axis=1).astype(np.float64)
    first, second, last = weights(*WIDE.widths())
    return (np.maximum(sides["context"] @ first + sides["candidate"] @ second, 0) @ last)[:, 0]


def test_hundreds_of_features_are_ranked_as_the_model_says_by_both_forms(root: Path) -> None:
    json, message = bodies(WIDE)
    service = Running(root)
    request, _ = json_bodies.read_ranking(json_bodies.parse(json), Target(WIDE.model))
    by_json = service.ask(service.engine.rank(request, Call("")))
    by_message = service.ask(service.engine.rank(messages.read_ranking(message), Call("")))
    assert by_json.scores.tobytes() == by_message.scores.tobytes()
    wanted = expected(root / WIDE.model / "1", orjson.loads(json))
    np.testing.assert_allclose(by_json.scores, wanted, 1e-4, 1e-4)
    counted = {
        part: service.value("rowcast_part_examples_total", model=WIDE.model, tower="ranking", part=part)
        for part in ("context", "trunk")
    }
    assert counted == {"context": 2, "trunk": 2 * CANDIDATES}
    service.close()


def test_what_the_workload_measures_runs(root: Path) -> None:
    assert bare_ms(WIDE, root / WIDE.model / "1") > 0
    assert set(gains(WIDE, root / WIDE.model / "1")) == {"packed", "looked up"}
