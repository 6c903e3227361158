"""Layout files that are damaged or claim much: a layout that fits its variable, or a
typed error.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from pathlib import Path

import pytest

from export.checkpoint.inventory.layout_file import read_layouts
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import ExportError
from export.tables.plan import plan_tables
from tests.cases.checkpoints.layout_files import KEY, SPEC_TEXT, STACK, TOML, spec_bytes
from tests.hostile.mutations import NUMBERS, flip, reword
from tests.hostile.ordeal import deadline
from tests.units.export.checkpoint.tensor_bundles import write_bundle

STATED = TOML.partition("[tables.words]")[0]
"""Without the table that is to be derived."""
SOUND = {
    "l.toml": STATED.encode(),
    "l.json": json.dumps(tomllib.loads(STATED)).encode(),
    "s.textproto": SPEC_TEXT.encode(),
    "s.pb": spec_bytes(),
}
CLAIMS = {
    "deep.toml": b"a = " + b"[" * 200_000,
    "deep.json": b"[" * 200_000,
    "deep.textproto": b"a {" * 200_000,
    "long.json": b'{"tables": {"a": {"key": "stack", "kind": "plain", "rows": '
    + b"9" * 10_000
    + b"}}}",
    "long.textproto": b"stack_vocab_size: " + b"9" * 10_000,
    "claim.pb": b"\x0a\xff\xff\xff\xff\x0f",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Variables that the sound files speak of."""
    root = tmp_path_factory.mktemp("layouts")
    files = {KEY: STACK, "genres": STACK[:10], "ages": STACK[:128]}
    write_bundle(root / "all/ckpt-1", files)
    return open_checkpoint(root / "all")


def endure(checkpoint: Checkpoint, path: Path, data: bytes) -> str:
    """Returns what was rejected, "" for nothing."""
    path.write_bytes(data)
    try:
        with deadline():
            inventory = recognize(checkpoint, Statements(layouts=read_layouts(path)))
            plan_tables(checkpoint, inventory, path.parent / "out")
    except ExportError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("name", SOUND)
def test_layout_file_with_any_damage_fits_or_is_a_typed_error(
    checkpoint: Checkpoint, tmp_path: Path, name: str
) -> None:
    assert endure(checkpoint, tmp_path / name, SOUND[name]) == ""
    for seed in range(250):
        rng = random.Random(seed)
        data = SOUND[name]
        if name == "s.pb" and seed % 2:
            data = reword(rng, data)
        elif seed % 2:
            data = _renumbered(rng, data)
        else:
            data = flip(rng, data)
        endure(checkpoint, tmp_path / name, data)


def _renumbered(rng: random.Random, data: bytes) -> bytes:
    def other(actual: re.Match[bytes]) -> bytes:
        return actual[0] if rng.random() < 0.8 else str(rng.choice([*NUMBERS, -1])).encode()

    return re.sub(rb"\d+", other, data)


@pytest.mark.parametrize("name", CLAIMS)
def test_layout_file_with_huge_sizes_is_rejected(
    checkpoint: Checkpoint, tmp_path: Path, name: str
) -> None:
    assert endure(checkpoint, tmp_path / name, CLAIMS[name])
