"""Hostile checkpoints: values or a typed error come of them, in bounded time and memory; nothing gets out of place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.checkpoint.bundles import GRAPH, SUFFIX, node, object_graph, write_bundle
from tests.export.checkpoint.inventory.test_sparsecore import ITEMS, USERS
from tests.export.checkpoint.inventory.test_sparsecore import write as write_stack
from tests.hostile.claims import CLAIMS, Claim
from tests.hostile.mutations import Files, files_of, mutated
from tests.hostile.ordeal import deadline, endure, memory_limit

FLOOR_BYTES = 8 << 20
"""What a trial may hold beside the file: mostly what Python and rich take for the page."""
HELD_PER_BYTE = 256
"""An entry of 13 bytes, or a table of 34, becomes objects of Python: specs, plan, page; each of bounded size."""
VALUES = np.random.default_rng(11).standard_normal((23, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Files]:
    """Checkpoints of several layouts: a stack, an embedding object in slices, an optimizer's list, names alone."""
    root = tmp_path_factory.mktemp("sound")
    write_stack(root / "stack", USERS, ITEMS)
    key, slot, layer = f"e/t{SUFFIX}", f"e/t.Sacc{SUFFIX}", f"m/emb/embeddings{SUFFIX}"
    nodes = [node({"e": 1, "m": 6, "opt": 8, "step": 11}), node({"_variables": 2}), node({"items": 3})]
    nodes += [node({"parameters": 4, "accumulators": 5}), node(key=key), node(key=slot), node({"emb": 7})]
    nodes += [node({"embeddings": 12}), node({"_variables": 9, "_iterations": 11}), node({"0": 11, "1": 10})]
    nodes += [node(key=slot, full_name="Adam/m/emb/embeddings"), node(key=f"step{SUFFIX}")]
    nodes += [node(key=layer, full_name="emb/embeddings", slots=[(4, "m", 5)])]
    cut: Any = {
        key: [[(0, 9), (0, -1)], [(9, 14), (0, 2)], [(9, 14), (2, 3)]],
        "c/embedding_weights": [[(0, 23), (0, -1)]],
    }
    values: dict[str, Any] = {
        key: VALUES,
        slot: VALUES,
        layer: VALUES,
        f"step{SUFFIX}": np.array(7),
        GRAPH: object_graph(*nodes),
    }
    write_bundle(root / "objects/ckpt-1", values, boxes=cut, files=2)
    named = {"c/embedding_weights": VALUES, "c/embedding_weights/Adagrad": VALUES, "global_step": np.array(3)}
    write_bundle(root / "names/ckpt-1", {**named, "b": VALUES.astype("f2"), "t": b"text"}, boxes=cut, files=3)
    return [files_of(root / name / "ckpt-1") for name in ("stack", "objects", "names")]


def test_sound_checkpoints_pass_the_ordeal(sound: list[Files], tmp_path: Path) -> None:
    for files in sound:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        assert endure(tmp_path / "ckpt-1") == ""


@pytest.mark.parametrize("chunk", range(8))
def test_checkpoint_with_any_damage_gives_values_or_a_typed_error(
    sound: list[Files], tmp_path: Path, chunk: int
) -> None:
    for seed in range(300 * chunk, 300 * chunk + 300):
        for name, data in mutated(seed, sound[seed % len(sound)]).items():
            (tmp_path / name).write_bytes(data)
        with deadline():
            endure(tmp_path / "ckpt-1")


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_checkpoint_that_claims_much_is_told_in_time_and_memory_of_its_own_size(tmp_path: Path, claim: Claim) -> None:
    claim(tmp_path / "c")
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    with deadline(60), memory_limit(FLOOR_BYTES + HELD_PER_BYTE * size):
        assert endure(tmp_path / "c")
