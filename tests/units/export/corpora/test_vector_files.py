"""`rowcast-export vectors`: candidates for other engines, as pyarrow and json read them, beside
what the bundle was written from.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from tests.bundles.small import SmallBundle, coordinates, write_small_bundle
from tests.units.export.commands import Command

LARGE = 2**53 + 1
"""An id that a float64 does not hold."""


@pytest.fixture(scope="module")
def bundle(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallBundle:
    root = tmp_path_factory.mktemp("numbers")
    return write_small_bundle(root, small_towers, first_id=LARGE)


@pytest.fixture(scope="module")
def text_bundle(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallBundle:
    return write_small_bundle(
        tmp_path_factory.mktemp("texts"),
        small_towers,
        id_kind="string",
        more_indexes=("opposite",),
        distances={"opposite": "cosine"},
    )


@pytest.fixture(scope="module")
def large_bundle(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallBundle:
    """A bundle whose candidates are written in several blocks."""
    return write_small_bundle(tmp_path_factory.mktemp("large"), small_towers, size=17_000)


def attributes_of(bundle: SmallBundle) -> list[dict[str, Any]]:
    """Returns the attributes of each candidate, as the bundle was written from them."""
    return [
        {
            "title": bundle.titles[i],
            "year": None if i == 1 else 1990 + i,
            "rating": i / 4,
            "genres": list(bundle.genres[i]),
            "studio": None if i % 7 == 3 else f"studio {i % 5}",
            "classic": None if i == 2 else i % 3 == 0,
            "latitude": coordinates(i)[0],
            "longitude": coordinates(i)[1],
        }
        for i in range(len(bundle.ids))
    ]


def records_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_parquet_has_the_ids_vectors_and_attributes_of_all_candidates(
    bundle: SmallBundle, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "movies.parquet"
    report = command("vectors", bundle.directory, "--out", out, "--json").json
    assert report == {
        "index": "movies",
        "corpus": "movies",
        "candidates": 40,
        "dim": 8,
        "distance": "dot_product",
        "attributes": list(attributes_of(bundle)[0]),
        "out": str(out),
    }
    rows = parquet.read_table(out).to_pylist()
    assert [row.pop("id") for row in rows] == bundle.ids.tolist()
    vectors = np.array([row.pop("vector") for row in rows], np.float32)
    np.testing.assert_array_equal(vectors, bundle.vectors)
    assert rows == [
        {f"attribute:{name}": value for name, value in attributes.items()}
        for attributes in attributes_of(bundle)
    ]
    assert os.listdir(tmp_path) == [out.name]


def test_vertex_lines_have_text_ids_and_a_restrict_for_each_value(
    bundle: SmallBundle, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "movies.json"
    crowding = ("--format", "vertex", "--crowding", "studio")
    assert command("vectors", bundle.directory, "--out", out, *crowding).code == 0
    records = records_of(out.read_text())
    assert [record["id"] for record in records] == [str(number) for number in bundle.ids]
    vectors = np.array([record["embedding"] for record in records], np.float32)
    np.testing.assert_array_equal(vectors, bundle.vectors)
    for record, attributes in zip(records, attributes_of(bundle), strict=True):
        tokens = {entry["namespace"]: entry["allow"] for entry in record["restricts"]}
        classic = attributes["classic"]
        texts = {
            "title": [attributes["title"]],
            "genres": attributes["genres"],
            "studio": [attributes["studio"]] * (attributes["studio"] is not None),
            "classic": [json.dumps(classic)] * (classic is not None),
        }
        assert tokens == {name: values for name, values in texts.items() if values}
        numbers = {entry.pop("namespace"): entry for entry in record["numeric_restricts"]}
        fields = {"year": "value_int", "rating": "value_double"}
        fields |= dict.fromkeys(("latitude", "longitude"), "value_double")
        assert numbers == {
            name: {field: attributes[name]}
            for name, field in fields.items()
            if attributes[name] is not None
        }
        assert record.get("crowding_tag") == attributes["studio"]


def test_named_index_and_attributes_go_to_standard_output(
    text_bundle: SmallBundle, command: Command
) -> None:
    options = ("--index", "opposite", "--attributes", "year,genres", "--format", "vertex")
    done = command("vectors", text_bundle.directory, *options, "--out", "-")
    assert (done.code, done.err) == (0, "")
    records = records_of(done.out)
    assert [record["id"] for record in records] == text_bundle.ids.tolist()
    vectors = np.array([record["embedding"] for record in records], np.float32)
    np.testing.assert_array_equal(vectors, -text_bundle.vectors)
    assert records[1].keys() == {"id", "embedding", "restricts"}
    assert records[1]["restricts"] == [{"namespace": "genres", "allow": [*text_bundle.genres[1]]}]
    assert records[0]["numeric_restricts"] == [{"namespace": "year", "value_int": 1990}]


REJECTED: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "no index named": ((), 2, ("movies, opposite", "--index")),
    "other index": (("--index", "films"), 2, ("'films'", "movies, opposite")),
    "other attribute": (
        ("--index", "movies", "--attributes", "titel"),
        2,
        ("'titel'", "title, year"),
    ),
    "crowding of Parquet": (("--index", "movies", "--crowding", "studio"), 2, ("--format vertex",)),
    "crowding by a list": (
        ("--index", "movies", "--format", "vertex", "--crowding", "genres", "--out", "-"),
        2,
        ("'genres'", "one value"),
    ),
    "crowding by what is left out": (
        ("--index=movies", "--format=vertex", "--crowding=studio", "--attributes=year", "--out=-"),
        2,
        ("'studio'", "among those"),
    ),
    "name that Vertex AI does not ingest": (("--format", "vertex"), 2, ("films.parquet", ".json")),
    "no directory": (("--index", "movies", "--out", "missing/a.parquet"), 6, ("missing",)),
}


@pytest.mark.parametrize("case", REJECTED)
def test_command_that_cannot_be_carried_out_writes_nothing(
    case: str,
    text_bundle: SmallBundle,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options, code, words = REJECTED[case]
    monkeypatch.chdir(tmp_path)
    done = command("vectors", text_bundle.directory, "--out", "films.parquet", *options)
    assert (done.code, done.out) == (code, "")
    assert [word for word in words if word not in done.message] == [], done.message
    assert os.listdir(tmp_path) == []


def test_damaged_vectors_and_bundles_without_indexes_are_rejected(
    small_towers: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "films.parquet"
    whole = write_small_bundle(tmp_path / "whole", small_towers)
    vectors = whole.directory / whole.manifest.indexes["movies"].vectors
    content = bytearray(vectors.read_bytes())
    content[5] ^= 1
    vectors.write_bytes(content)
    done = command("vectors", whole.directory, "--out", out)
    assert (done.code, "checksum" in done.message, out.exists()) == (5, True, False)

    bare = write_small_bundle(tmp_path / "bare", small_towers, without=frozenset({"indexes"}))
    done = command("vectors", bare.directory, "--out", out)
    assert (done.code, "no index" in done.message, out.exists()) == (2, True, False)
    done = command("vectors", tmp_path, "--out", out)
    assert (done.code, "ROOT/MODEL/VERSION" in done.message) == (2, True)


LIMITED = """
import resource, signal, sys
from rowcast.programs import export

signal.signal(signal.SIGXFSZ, getattr(signal, sys.argv.pop()))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
export()
"""
"""The program, which may write 1 MiB: then a signal ends it, or the file cannot be written."""


@pytest.mark.parametrize(("action", "status"), [("SIG_DFL", -signal.SIGXFSZ), ("SIG_IGN", 6)])
def test_run_that_is_killed_or_cannot_write_leaves_the_previous_file(
    action: str, status: int, large_bundle: SmallBundle, tmp_path: Path
) -> None:
    out = tmp_path / "movies.json"
    out.write_text("previous")
    arguments = ["vectors", str(large_bundle.directory), "--format", "vertex", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments, action],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert out.read_text() == "previous"
    if status == 6:
        assert f"--out {out}: File too large" in done.stderr
        assert os.listdir(tmp_path) == [out.name]


def test_blocks_of_a_corpus_are_written_in_order(
    large_bundle: SmallBundle, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "movies.parquet"
    command("vectors", large_bundle.directory, "--out", out, "--attributes", "rating")
    table = parquet.read_table(out)
    assert table["id"].to_pylist() == large_bundle.ids.tolist()
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    np.testing.assert_array_equal(vectors, large_bundle.vectors)
    assert table["attribute:rating"].to_pylist() == [i / 4 for i in range(len(vectors))]
