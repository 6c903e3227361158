"""Writes the golden bundle and a service's responses from it.

`python -m tests.differential.write_bundle` makes `tests/differential/bundle/`. The committed one
stays as it is while the format has its number: every reader of that format must open it and return
the same responses.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bundle.features.reader import Column
from bundle.format.manifest import (
    DenseFeature,
    EmbeddedFeature,
    Feature,
    JointInput,
    KeyedIds,
    Unknown,
)
from bundle.storage.catalog import read_manifest
from service.contract.messages import RankingRequest, RetrievalRequest, Target
from tests.bundles.small import write_small_bundle
from tests.bundles.towers import compiled_towers
from tests.id_graphs import crossed_ids, vocabulary_ids
from tests.units.service.running import RunningService

BUNDLE = Path(__file__).parent / "bundle"
CONTEXT = {
    "user": Column(np.array([3])),
    "history": Column(np.array([1, 4, 4]), np.array([0, 3])),
    "city": Column(np.array(["berlin"], object)),
}
KEYS = 3 * np.arange(50)
"""Of users, in the order of their rows."""
FEATURES: dict[str, Feature] = {
    "user": EmbeddedFeature(
        kind="single",
        table="users",
        role="context",
        ids=KeyedIds(keys="users"),
        unknown=Unknown(rule="row", row=0),
    ),
    "city": EmbeddedFeature(
        kind="bag",
        table="cities",
        role="context",
        inputs=("city", "history"),
        joint=(JointInput(default="nowhere"), JointInput(default=[])),
        ids=crossed_ids(("string", "int64"), 16),
        combiner="mean",
    ),
    "recent": EmbeddedFeature(
        kind="sequence",
        table="movies",
        role="context",
        inputs=("history",),
        ids=vocabulary_ids(
            "movies",
            "int64",
            first_row=4,
            oov_buckets=3,
            oov_first_row=1,
            oov_hash="modulo",
            mask=4,
        ),
        padding=1,
        length=3,
        default=[],
    ),
    "hour": DenseFeature(
        kind="dense", role="context", inputs=("history",), take="lengths", default=[]
    ),
}
"""What the bundles of examples do not have."""


def responses(root: Path) -> dict[str, Any]:
    """Returns what a service over `root` responds to one retrieval and one ranking."""
    running = RunningService(root)
    try:
        details = running.dataplane.descriptions.model(Target("movies")).value
        calls = {
            call["call"]: {feature["name"] for feature in call["features"]}
            for call in details["calls"]
        }
        sent = {name: column for name, column in CONTEXT.items() if name in calls["retrieve"]}
        actual = running.execute(RetrievalRequest(Target("movies"), k=5, context=sent), "retrieve")
        context = {name: column for name, column in CONTEXT.items() if name in calls["rank"]}
        ranking = RankingRequest(Target("movies"), context, candidate_ids=actual.ids)
        ranked = running.execute(ranking)
        stored = {}
        if read_manifest(root / "movies" / "1").contexts:
            by_id = replace(
                ranking, context={"history": CONTEXT["history"]}, context_ids=np.array([7]), k=3
            )
            stored["scores_by_context_id"] = running.execute(by_id).scores.tolist()
    finally:
        running.close()
    return stored | {
        "version": actual.version,
        "neighbors": actual.ids.tolist(),
        "retrieval_scores": [float(score) for score in actual.scores],
        "ranking_scores": [float(score) for score in ranked.scores],
    }


def main() -> None:
    """Writes the bundle and the responses."""
    place = BUNDLE
    if place.exists():
        sys.exit(f"{place} is committed, and not written anew")
    with tempfile.TemporaryDirectory() as scratch:
        write_small_bundle(
            Path(scratch, "root"),
            compiled_towers(Path(scratch, "towers")),
            row_types={"movies": "int8", "cities": "int8", "users": "linked"},
            features=FEATURES,
            keys={"users": KEYS},
            parts=True,
            formula="sigmoid(score) * sigmoid(watch)^0.5 + rating / 100",
            users=True,
        )
        shutil.copytree(Path(scratch, "root"), place / "root")
    (place / "responses.json").write_text(json.dumps(responses(place / "root"), indent=2) + "\n")


if __name__ == "__main__":
    main()
