"""What a small bundle may have beside its towers: parts of the ranking tower, and a store of contexts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import Column
from bundle.format import paths
from bundle.format.manifest import Corpus, Tower, TowerForm, TowerInput, TowerOutput, TowerPart
from bundle.stores.writer import write_store
from tests.service import small_model

Array = NDArray[Any]

STORED_USERS: dict[int, tuple[tuple[int, ...], tuple[float, ...], tuple[float, float]]] = {
    7: ((1, 4), (0.5, 2.0), (0.25, -1.0)),
    3: ((), (), (0.5, 0.5)),
    21: ((9,), (1.5,), (-0.125, 2.0)),
}
"""Of each stored user: the places of the candidates liked with their weights, and the mood."""


def split_tower(
    entry: Tower, place: Path, edition: Path, parts: bool, formula: str | None
) -> Tower:
    """Returns the entry of the ranking tower with its parts, which are put into the bundle, and a formula."""
    return entry.model_copy(
        update={"parts": _write_parts(place, edition) if parts else (), "formula": formula}
    )


def _write_parts(place: Path, edition: Path) -> tuple[TowerPart, ...]:
    entries = []
    for part, (per, features, _) in small_model.PARTS.items():
        file = paths.compiled_tower("ranking", "f32", part)
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(edition / "ranking/parts" / part / "compiled-f32.tflite", place / file)
        form = TowerForm(kind="litert", precision="f32", path=file, max_abs_error={part: 0.0})
        entries.append(
            TowerPart(
                name=part,
                per="context" if per == "context" else "candidate",
                inputs=tuple(
                    TowerInput(
                        name=name,
                        features=features if name == "packed" else (),
                        tensor="" if name == "packed" else name,
                        dtype="float32",
                        shape=(None, *shape),
                    )
                    for name, shape in small_model.part_inputs(part).items()
                ),
                outputs=(
                    TowerOutput(
                        name=part,
                        dtype="float32",
                        shape=(None, 3) if part in {"context", "trunk"} else (None,),
                    ),
                ),
                forms=(form,),
            )
        )
    return tuple(entries)


def write_users(place: Path, movies: Array) -> Corpus:
    """Puts the context store of users into a bundle; returns its manifest entry. `movies`: ids of the candidates."""
    ids = np.array(list(STORED_USERS))
    liked = [movies[list(places)] for places, _, _ in STORED_USERS.values()]
    offsets = np.concatenate([[0], np.cumsum([len(some) for some in liked])]).astype(np.int64)
    weights = np.array(
        [weight for _, some, _ in STORED_USERS.values() for weight in some], np.float32
    )
    stored = {
        "user": Column(ids),
        "liked": Column(np.concatenate(liked), offsets, weights),
        "mood": Column(
            np.array(
                [number for _, _, mood in STORED_USERS.values() for number in mood], np.float32
            )
        ),
    }
    store = write_store(place / paths.context_store("users"), ids, stored, {})
    return Corpus(file=paths.context_store("users"), **vars(store))
