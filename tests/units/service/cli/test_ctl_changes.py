"""`rowcast-serve ctl rows`, `candidates`, `contexts` and `changes` against the admin API of a
service over a small bundle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from service.engine.calls import RetrievalRequest, Target
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.units.service.cli.test_ctl import ctl
from tests.units.service.running import RunningService, flip

NEW = {"movie": 1007, "genres": ["drama"], "year": 0.5}


class ChangingService:
    """A service over a small bundle, and `ctl` against it.

    Attributes:
      small: What the bundle holds.
      log: The change log.
    """

    def __init__(self, root: Path, small: SmallBundle) -> None:
        self.small = small
        self.log = root / "movies" / "changes.log"
        self._service = RunningService(root)

    def ctl(self, *arguments: str) -> Result:
        return ctl("--admin", self._service.admin, *arguments)

    def printed(self, *arguments: str) -> str:
        """Returns what a command prints that succeeds."""
        done = self.ctl(*arguments)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def document(self, *arguments: str) -> dict[str, Any]:
        """Returns the JSON that a command prints that succeeds."""
        document: dict[str, Any] = json.loads(self.printed("--json", *arguments))
        return document

    def nearest(self) -> list[int]:
        """Returns the candidates nearest to that of the first vector of the bundle."""
        request = RetrievalRequest(
            Target("movies"), k=3, vectors=self.small.vectors[:1], attributes=("year",)
        )
        ids: list[int] = self._service.execute(request, "retrieve").ids.tolist()
        return ids

    def row(self, table: str, row: int) -> list[float]:
        """Returns a row as it is served."""
        rows: list[list[float]] = (
            self._service.current().reader.take(table, np.array([row])).tolist()
        )
        return rows[0]

    def close(self) -> None:
        self._service.close()


@pytest.fixture
def service(root: Path, small_towers: Path) -> Iterator[ChangingService]:
    changing = ChangingService(root, write_small_bundle(root, small_towers, users=True))
    yield changing
    changing.close()


@pytest.fixture(scope="module")
def unchanged(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[ChangingService]:
    """A service that no test changes."""
    root = tmp_path_factory.mktemp("bundles")
    service = ChangingService(root, write_small_bundle(root, small_towers))
    yield service
    service.close()


def lines(path: Path, *items: Any) -> str:
    """Writes a file of JSON lines; returns its path."""
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    return str(path)


def movie(key: int, vector: Any) -> dict[str, Any]:
    return {
        "id": key,
        "features": NEW,
        "attributes": {"title": f"Film {key}", "year": 2024},
        "vectors": {"movies": vector},
    }


def test_candidates_are_added_changed_and_deleted(service: ChangingService, tmp_path: Path) -> None:
    near = (10 * service.small.vectors[0]).tolist()
    far = (-10 * service.small.vectors[0]).tolist()
    before = service.nearest()
    file = lines(tmp_path / "new", movie(5000, near), movie(5001, far))
    printed = service.printed(
        "candidates", "upsert", "movies", "--corpus", "movies", "--file", file
    )
    assert printed == "movies: 2 changed (sequence 1)\n"
    assert service.nearest() == [5000, *before[:2]]

    file = lines(tmp_path / "years", {"id": 5000, "attributes": {"year": 1999}})
    assert service.document("candidates", "attributes", "movies", "--file", file)["changed"] == 1
    deleted = service.printed("candidates", "delete", "movies", "5000", "77", "5001", "78")
    assert deleted == "movies: 2 changed (sequence 3), 2 unknown (77, 78)\n"
    assert service.nearest() == before
    assert service.printed("candidates", "delete", "movies", "77") == (
        "movies: 0 changed, 1 unknown (77)\n"
    )


def test_rows_are_changed_by_number_and_by_id(service: ChangingService, tmp_path: Path) -> None:
    file = lines(tmp_path / "rows", {"id": 3, "vector": [1.0] * 8})
    service.printed("rows", "upsert", "movies", "--table", "users", "--file", file)
    assert service.row("users", 3) == [1.0] * 8
    file = lines(tmp_path / "movies", {"id": 1014, "vector": [2.0] * 8})
    service.printed("rows", "upsert", "movies", "--feature", "movie", "--file", file)
    assert service.row("movies", 3) == [2.0] * 8


def test_items_that_do_not_fit_together_are_sent_one_after_the_other(
    service: ChangingService, tmp_path: Path
) -> None:
    file = lines(
        tmp_path / "mixed",
        {"id": 1000, "attributes": {"year": 2000}},
        {"id": 1007, "attributes": {"title": "Another"}},
        {"id": 1007, "attributes": {"title": "And another"}},
        {"id": 1014, "attributes": {"title": "A third"}, "sequence": 5},
        {"id": 1014, "attributes": {"title": "An older third"}, "sequence": 4},
    )
    printed = service.printed("candidates", "attributes", "movies", "--file", file)
    assert printed == "movies: 4 changed (sequence 4), 1 outdated (1014)\n"


def test_stream_that_was_interrupted_is_repeated_from_its_start(
    service: ChangingService, tmp_path: Path
) -> None:
    items = [{"id": row, "vector": [float(row)] * 8} for row in range(5)]
    path = tmp_path / "part"
    command = ("rows", "upsert", "movies", "--table", "users", "--batch", "2")
    options = ("--stream", "trainer", "--offset", "100", "--file", str(path))
    lines(path, *items[:3])
    assert service.printed(*command, *options) == "movies: 3 changed (sequence 2)\n"
    lines(path, *items[:4], "cut")
    failed = service.ctl(*command, *options)
    assert failed.exit_code == 2
    assert f'{path}:5: the line is "cut"; a JSON object' in failed.stderr
    lines(path, *items)
    assert service.printed(*command, *options) == (
        "movies: 2 changed (sequence 3), 3 applied before\n"
    )
    assert service.printed(*command, *options) == "movies: 0 changed, 5 applied before\n"
    assert service.document("changes", "status", "movies")["streams"] == {"trainer": 105}
    assert service.row("users", 4) == [4.0] * 8


def test_rejected_item_is_named_by_its_line(service: ChangingService, tmp_path: Path) -> None:
    items = [{"id": row, "vector": [1.0] * 8} for row in range(3)]
    command = ("rows", "upsert", "movies", "--table", "users", "--file")
    for last, line, field in (
        ({"id": 4, "vector": [1.0, 2.0]}, 4, "vector"),
        ({"id": 1000, "vector": [1.0] * 8}, 4, "1000"),
    ):
        file = lines(tmp_path / "rows", *items, last)
        failed = service.ctl(*command, file, "--batch", "2")
        assert (failed.exit_code, failed.stdout) == (2, "")
        assert f"{file}:{line}: INVALID_ARGUMENT: " in failed.stderr
        assert field in failed.stderr
        assert "up to 2 are applied" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["candidates", "delete", "movies"], 2, "name either ids or a --file"),
        (["candidates", "delete", "movies", "5", "--stream", "s"], 2, "--stream is accepted only"),
        (["candidates", "delete", "other", "5"], 2, "NOT_FOUND: "),
        (["candidates", "delete", "movies", "5", "--corpus", "no"], 2, "has no corpus 'no'"),
        (["rows", "upsert", "movies", "--file", "/no/file"], 2, "--file /no/file cannot be read"),
        (["rows", "upsert", "movies", "--file", "-", "--offset", "3"], 2, "together with --stream"),
        (["changes", "status", "other"], 2, "NOT_FOUND: "),
        (["changes", "recover", "movies"], 2, "model 'movies' has no change log"),
    ],
)
def test_command_that_cannot_be_sent_is_reported_in_one_line(
    unchanged: ChangingService, arguments: list[str], code: int, message: str
) -> None:
    done = unchanged.ctl(*arguments)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert done.stderr.count("\n") == 1


def test_recovery_leaves_out_a_damaged_record_and_names_it(service: ChangingService) -> None:
    for key in ("1000", "1007"):
        service.printed("candidates", "delete", "movies", key)
    size = service.log.stat().st_size
    service.printed("candidates", "delete", "movies", "1014")
    assert service.printed("changes", "recover", "movies").endswith(
        ": 3 changes, and nothing is damaged\n"
    )
    flip(service.log, size - 10)
    printed = service.printed("changes", "recover", "movies")
    assert ": 2 changes kept, " in printed
    assert "sequences that are lost: 2; the damaged log is " in printed
    status = service.printed("changes", "status", "movies")
    # Sequences of lost records are never used again.
    assert status.startswith(f"movies: sequence 1000003 of {service.log}\n")


def test_status_names_the_damage_for_which_no_version_is_served(
    root: Path, small_towers: Path
) -> None:
    small = write_small_bundle(root, small_towers)
    service = ChangingService(root, small)
    service.printed("candidates", "delete", "movies", "1000")
    service.close()
    flip(service.log, service.log.stat().st_size - 10)
    service = ChangingService(root, small)
    try:
        status = service.printed("changes", "status", "movies")
        assert status.startswith(
            f"movies: sequence 0 of {service.log}\nproblem: the record at byte "
        )
        rejected = service.ctl("candidates", "delete", "movies", "1000")
        assert (rejected.exit_code, "NOT_READY" in rejected.stderr) == (4, True)
    finally:
        service.close()
