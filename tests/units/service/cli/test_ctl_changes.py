"""`rowcast-serve ctl candidates`, `contexts` and `changes` against the admin API of a
service over a small bundle.
"""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import ids_of, nearest
from tests.units.service.cli.test_ctl import ctl
from tests.units.service.running import RunningService

VECTOR = [100.0] * 8
MIXED = [
    {"id": 1000, "attributes": {"year": 2000}},
    {"id": 1007, "attributes": {"title": "Another"}},
    {"id": 1007, "attributes": {"title": "And another"}},
    {"id": 1014, "attributes": {"title": "A third"}, "sequence": 5},
    {"id": 1014, "attributes": {"title": "An older third"}, "sequence": 4},
]
"""Items that do not fit into one change."""
UPSERT = "candidates upsert movies --corpus movies --file FILE --batch 2"
STREAM = f"{UPSERT} --stream catalog --offset 100"


def movie(key: int, vector: list[float] = VECTOR) -> dict[str, Any]:
    features = {"movie": 1007, "genres": ["drama"], "year": 0.5}
    attributes = {"title": f"Film {key}", "year": 2024}
    vectors = {"movies": vector}
    return {"id": key, "features": features, "attributes": attributes, "vectors": vectors}


MOVIES = [movie(6000 + number, [float(number)] * 8) for number in range(5)]


STEPS: list[tuple[str, list[Any], int, str]] = [
    ("changes backup movies BACKUP", [], 2, "model 'movies' has no changes"),
    (
        "candidates upsert movies --corpus movies --file FILE",
        [movie(5000), movie(5001)],
        0,
        "movies: 2 changed (sequence 3)\n",
    ),
    (
        "--json candidates attributes movies --file FILE",
        [{"id": 5000, "attributes": {"year": 1999}}],
        0,
        '"changed"',
    ),
    (
        "candidates delete movies 5001 77 78",
        [],
        0,
        "movies: 1 changed (sequence 7), 2 unknown (77, 78)\n",
    ),
    ("candidates delete movies 77", [], 0, "movies: 0 changed (sequence 8), 1 unknown (77)\n"),
    (
        "candidates attributes movies --file FILE",
        [{"id": 1014, "attributes": {"rating": 2.0}}],
        0,
        "1 changed",
    ),
    (
        "candidates attributes movies --file FILE",
        MIXED,
        0,
        "movies: 4 changed (sequence 13), 1 outdated (1014)\n",
    ),
    (STREAM, MOVIES[:3], 0, "movies: 3 changed (sequence 20)\n"),
    (STREAM, [*MOVIES[:4], "cut"], 2, 'FILE:5: the line is "cut"; a JSON object'),
    (STREAM, MOVIES, 0, "movies: 2 changed (sequence 24), 3 applied before\n"),
    (STREAM, MOVIES, 0, "movies: 0 changed, 5 applied before\n"),
    ("changes status movies", [], 0, "catalog"),
    (UPSERT, [*MOVIES[:3], movie(6003, [1.0])], 2, "FILE:4: INVALID_ARGUMENT: "),
    (UPSERT, [*MOVIES[:3], movie(6003, [1e30] * 8)], 2, "up to 2 are applied"),
    (f"--token-file /no/file {UPSERT}", MOVIES[:1], 2, "ctl: /no/file cannot be used"),
    ("candidates delete movies", [], 2, "name either ids or a --file"),
    ("candidates delete movies 5 --stream s", [], 2, "--stream is accepted only"),
    ("candidates delete other 5", [], 2, "NOT_FOUND: "),
    ("candidates delete movies 5 --corpus no", [], 2, "has no corpus 'no'"),
    ("candidates upsert movies --file /no/file", [], 2, "--file /no/file cannot be read"),
    ("candidates upsert movies --corpus moviez --file /dev/null", [], 2, "/dev/null has no items"),
    ("candidates upsert movies --file - --offset 3", [], 2, "together with --stream"),
    ("changes status other", [], 2, "NOT_FOUND: "),
    ("changes backup movies BACKUP", [], 0, "BACKUP: "),
    ("changes backup movies BACKUP", [], 4, "BACKUP cannot be created: File exists"),
]
"""Commands, one after the other, the lines of their file, the exit code, and words of the page."""


LINE = json.dumps(MOVIES[1]).encode()
CONTENTS: list[tuple[str, bytes, int, str]] = [
    ("items.jsonl", codecs.BOM_UTF8 + LINE, 0, "1 changed"),
    ("items.jsonl.gz", gzip.compress(LINE, mtime=0), 0, "1 changed"),
    ("items.jsonl", gzip.compress(LINE, mtime=0), 2, "FILE: items.jsonl is compressed with GZIP"),
    ("items.jsonl", LINE.decode().encode("utf-16"), 2, "FILE: items.jsonl is not UTF-8"),
    ("items.jsonl.gz", LINE, 2, "FILE cannot be read: Not a gzipped file"),
    (
        "items.jsonl.gz",
        gzip.compress(LINE, mtime=0)[:-9],
        2,
        "FILE cannot be read: Compressed file ended",
    ),
    ("items.jsonl", b'\n{"id": 1, "vector": [NaN]}', 2, "FILE:2: the line is no JSON"),
    ("items.jsonl", b'{"id": 1, "vector": [-Infinity]}', 2, "no NaN and no infinity: leave"),
]
"""Files of items: the exit code, and words of the page."""


def test_file_is_read_by_its_name_and_what_it_is_no_text_of_is_named(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    write(users=True)
    service = serve()
    for name, content, code, words in CONTENTS:
        file = tmp_path / name
        file.write_bytes(content)
        arguments = UPSERT.replace("FILE", str(file)).split()
        done = ctl("--admin", service.admin, *arguments)
        page = done.stdout + done.stderr
        assert (done.exit_code, words.replace("FILE", str(file)) in page) == (code, True), page


def test_changes_are_made_counted_and_named(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    ids = {*write(users=True).ids.tolist()}
    service = serve()
    file = tmp_path / "items"
    for step, items, code, outcome in STEPS:
        file.write_text("".join([f"{json.dumps(item)}\n" for item in items]))
        command, words = [
            text.replace("FILE", str(file)).replace("BACKUP", str(tmp_path / "backup"))
            for text in (step, outcome)
        ]
        done = ctl("--admin", service.admin, *command.split())
        page = done.stdout + done.stderr
        assert (done.exit_code, words in page) == (code, True), page
        assert code == 0 or page.count("\n") == 1
    assert ids_of(service) == ids | {5000, *[item["id"] for item in MOVIES]}
    assert nearest(service, [1.0] * 8, k=1)[0][0] == [5000]
