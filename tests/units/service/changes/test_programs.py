"""Programs that open a version by themselves see its changes, as the service that made them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import parquet
from typer.testing import CliRunner, Result

from service.cli.serve import command
from service.request_log.record import read_newest
from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import candidate, change, file_of, responds
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
ALL = {"k": 50}


def batch(
    service: RunningService, folder: Path, options: dict[str, Any], *further: object
) -> Result:
    """Runs `rowcast-serve recommend` for one user beside a service."""
    users = folder / "users.jsonl"
    users.write_text('{"key": 1, "user": 2, "hour": 1.0}\n')
    arguments = ["recommend", "movies", users, folder / "lists.parquet", "--id", "key"]
    arguments += ["--root", service.settings.root, "--workers", 1]
    arguments += ["--options", json.dumps(options), *further]
    return CliRunner().invoke(command(), [str(argument) for argument in arguments])


def test_batch_has_the_list_of_the_service(
    write: Callable[..., SmallBundle], serve: Serve, tmp_path: Path
) -> None:
    small = write()
    service = serve(changes_dir=tmp_path / "changes")
    options: dict[str, Any] = {**ALL, "filter": {"year": {"le": 1995}}}

    def lists(*further: object) -> Any:
        result = batch(service, tmp_path, options, *further)
        assert result.exit_code == 0, result.stderr
        return result.stdout, parquet.read_table(tmp_path / "lists.parquet")["ids"][0].as_py()

    shown, before = lists("--changes-dir", tmp_path / "changes")
    assert "without changes" in shown
    deleted, expired, *_ = before
    later = next(key for key in small.ids.tolist() if key not in before)
    old = {"attributes": {"year": 1901}}
    change(service, "candidates/delete", {"id": deleted})
    change(service, "candidates/attributes", {"id": later, **old})
    change(service, "candidates/upsert", candidate(9001, **old))
    ending = candidate(expired, **old, expires_s=time.time() + 0.3)
    sequence = change(service, "candidates/upsert", ending)["sequence"]

    def served() -> list[int]:
        response = responds(service, "recommend", context={"user": 2, "hour": 1.0}, **options)
        ids: list[int] = response["ids"]
        return ids

    until(lambda: expired not in served())
    shown, listed = lists("--changes-dir", tmp_path / "changes")
    assert listed == served()
    assert {*listed} == {*before, later, 9001} - {deleted, expired}
    assert f"with its changes up to sequence {sequence} or later" in shown
    # The directory of the versions has none of them.
    assert lists()[1] == before


def test_batch_rejects_changes_that_it_cannot_read(
    write: Callable[..., SmallBundle], serve: Serve, tmp_path: Path
) -> None:
    write()
    service = serve()
    change(service, "candidates/delete", {"id": 1007})
    service.close()
    file_of(service).write_bytes(b"")
    result = batch(service, tmp_path, ALL)
    assert result.exit_code == 3
    assert f"{file_of(service)} is empty" in result.stderr
    assert not (tmp_path / "lists.parquet").exists()


def test_requests_of_what_was_added_keep_no_version_out(
    write: Callable[..., SmallBundle], serve: Serve, root: Path
) -> None:
    write(users=True)
    service = serve(record_rate=1.0, poll_interval_s=3600)
    features = {"user": 2, "liked": {"ids": [1007], "weights": [1.0]}, "mood": [0.5, 0.5]}
    change(service, "contexts/upsert", {"id": 99, "features": features})
    assert responds(service, "recommend", context_id=99, context={"hour": 1.0})["ids"]
    until(lambda: len(read_newest(root / ".rowcast-recordings/movies", 9)) == 1)
    write(version=2, users=True)
    service.scan()
    assert service.states()[2] == "available", service.problem(2)
