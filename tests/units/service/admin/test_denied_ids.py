"""Ids on the deny list: they are checked by the ids of the model's versions, and may be ids that no
version has now.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from service.versions.state_file import NAME
from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import Rejected, operate, request
from tests.units.service.cli.test_ctl import ctl
from tests.units.service.running import RunningService, log_lines

Write = Callable[..., SmallBundle]
Serve = Callable[..., RunningService]


def test_id_that_no_version_has_is_denied_and_named(write: Write, serve: Serve) -> None:
    ids = write().ids.tolist()
    service = serve()
    done = ctl("--admin", service.admin, "deny", "add", "movies", str(ids[0]), "5", "--", "-6")
    assert (done.exit_code, "ids in no corpus now: 2 ('5', '-6')" in done.stderr) == (0, True)
    assert (
        "in no corpus"
        not in ctl("--admin", service.admin, "deny", "add", "movies", str(ids[1])).stderr
    )
    assert "('-6', '5')" in ctl("--admin", service.admin, "deny", "list", "movies").stderr
    response = operate(service, "POST", "deny/add", json={"ids": [ids[2], "7"]})
    assert response["in_no_corpus"] == ["7"]
    assert operate(service, "GET", "deny")["in_no_corpus"] == ["-6", "5", "7"]


def test_ids_are_checked_by_all_versions_of_a_model(write: Write, serve: Serve) -> None:
    """By the loaded ones, by those that are not loaded, and by both if their kinds differ."""
    write()
    write(version=2)
    service = serve()
    operate(service, "POST", "unload", json={})
    with pytest.raises(Rejected, match="'m-1' is no integer id"):
        operate(service, "POST", "deny/add", json={"ids": ["m-1"]})
    write(version=3, id_kind="string")
    assert operate(service, "POST", "deny/add", json={"ids": ["m-1"]})["in_no_corpus"] == ["m-1"]
    operate(service, "POST", "load", json={})
    operate(service, "POST", "load", json={"version": 2})
    service.scan()
    assert operate(service, "POST", "deny/add", json={"ids": [1000, "1007"]})["in_no_corpus"] == []
    assert operate(service, "GET", "deny")["ids"] == ["1000", "1007", "m-1"]


def test_state_file_with_texts_that_are_no_ids_is_followed_and_reported(
    root: Path, write: Write, serve: Serve
) -> None:
    ids = write().ids.tolist()
    state = {"schema_version": 1, "models": {"movies": {"denied": ["047", str(ids[0])]}}}
    (root / NAME).write_text(json.dumps(state))
    with log_lines() as lines:
        service = serve()
    (event,) = [
        line
        for line in map(json.loads, lines.getvalue().splitlines())
        if line["event"] == "denied_ids_invalid"
    ]
    assert (event["model"], event["version"], event["ids"]) == ("movies", 1, ["047"])
    body = {"vectors": [[0.1] * 8], "k": len(ids), "exact": True}
    response = request("POST", f"{service.http}/v1/models/movies:retrieve", json=body)
    assert ids[0] not in response.json()["ids"]
    # What an earlier release has taken can be removed.
    assert operate(service, "GET", "deny")["in_no_corpus"] == ["047"]
    operate(service, "POST", "deny/remove", json={"ids": ["047"]})
    assert operate(service, "GET", "deny")["ids"] == [str(ids[0])]
