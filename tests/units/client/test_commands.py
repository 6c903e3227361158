"""The command line: what it sends and prints, exit codes, and one sentence for each failure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from rowcast_client import calls
from rowcast_client.stubs import embedding_service_pb2 as pb

from tests.cases.random_requests import written
from tests.cases.ways import Ways, serving
from tests.units.client.servers import NOT_READY, OK, Reply, grpc_server, http_page, http_server

Rowcast = Callable[..., int]
EMBED = ("embed", "m", "-f", "user=5")
DRAMAS = {"genres": {"allow": ["drama"]}}
USER = ("-f", "user=7")
RETRIEVE = ("retrieve", "movies", *USER, "-k", "2")
COMMANDS: dict[str, tuple[tuple[str, ...], calls.Call[Any], list[str]]] = {
    "retrieve": (
        (*RETRIEVE, "--attribute", "title", "--filter", json.dumps(DRAMAS), "--explain"),
        calls.retrieve({"user": 7}, k=2, attributes=["title"], filter=DRAMAS),
        ["Film", "path exact", "candidates match"],
    ),
    "options": (
        (*RETRIEVE, "--crowding", "studio:1,classic:1", "--min-score=-9", "--recall", "0.9"),
        calls.retrieve(
            {"user": 7}, k=2, crowding={"studio": 1, "classic": 1}, min_score=-9, recall=0.9
        ),
        ["movies version 1"],
    ),
    "features": (
        (
            "embed",
            "movies",
            "-f",
            "user=-5",
            "-f",
            "history=1007,",
            "-f",
            "city=a=b",
            "--tower",
            "query",
        ),
        calls.embed({"user": -5, "history": [1007], "city": "a=b"}, tower="query"),
        ["dim"],
    ),
    "JSON": (
        (
            *("rank", "movies", *USER, "-c", "1000,1007", "-f", "mood=0.5,-1", "-f"),
            'liked:={"ids":[1000],"weights":[0.5]}',
        ),
        calls.rank(
            {"user": 7, "mood": [0.5, -1.0], "liked": ([1000], [0.5])}, candidate_ids=[1000, 1007]
        ),
        ["1007"],
    ),
    "a minimum score": (
        (
            "rank",
            "movies",
            *USER,
            "-c",
            "1000,1007",
            "--min-score=-9",
            "--tower",
            "ranking",
            "-k",
            "1",
        ),
        calls.rank({"user": 7}, [1000, 1007], min_score=-9, tower="ranking", k=1),
        ["movies version 1"],
    ),
    "a context": (
        (
            "rank",
            "movies",
            "--context-id",
            "7",
            "-c",
            "1000",
            "--formula",
            "watch",
            "--head",
            "watch",
        ),
        calls.rank(context_ids=7, candidate_ids=[1000], formula="watch", heads=["watch"]),
        ["watch"],
    ),
    "recommend": (
        ("recommend", "movies", *USER, "-k", "2", "--diversity", "0.5"),
        calls.recommend({"user": 7}, k=2, diversity=0.5),
        ["retrieval score"],
    ),
    "lookup": (
        ("lookup", "movies", "--feature", "movie", "1007", "1", "--not-found", "skip"),
        calls.lookup("movie", [1007, 1], not_found="skip"),
        ["yes", "no"],
    ),
    "ids": (
        ("retrieve", "movies", "--ids", "1", "--not-found", "skip"),
        calls.retrieve(ids=[1], not_found="skip"),
        ["not found: 1"],
    ),
}
"""Arguments, the call that they are, and words that are printed."""
CODES: list[tuple[Any, int]] = [
    (Reply("INVALID_ARGUMENT", 400, "INVALID_ARGUMENT"), 3),
    (Reply("UNAUTHENTICATED", 401, "UNAUTHENTICATED"), 3),
    (Reply("DEADLINE", 504, "DEADLINE_EXCEEDED"), 4),
    # The next try would begin after the deadline, so that there is none.
    (replace(NOT_READY, retry_after="60"), 4),
    (Reply("DATA_LOSS", 500, "DATA_LOSS"), 1),
    (Reply("INTERNAL", 500, "INTERNAL"), 1),
    (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", 5),
]
USAGE: list[tuple[tuple[str, ...], str]] = [
    (("bench", "--save", "/dev"), "/dev is a directory"),
    (("bench", "--save", "/none/x.json"), "/none is no directory"),
    (("retrieve", "-f", "user"), ""),
    (("retrieve", "-f", "=5"), ""),
    (("retrieve", "-f", "user:={"), ""),
    (("retrieve", "-f", "user=1", "-f", "user=2"), ""),
    (("rank",), ""),
    (("retrieve", "--crowding", "seller"), ""),
    (("recommend", "--crowding", "seller:many"), ""),
    (("bench", "--rate", "0"), ""),
    (("bench", "--rate", "5", "--concurrency", "5"), ""),
    (("bench", "--seconds", "inf"), ""),
    (("lookup", "m", "5"), ""),
    ((*RETRIEVE, "-k", "many"), "'-k': 'many' should be a valid integer"),
    ((*RETRIEVE, "-k", "0"), "'-k': '0' should be greater than or equal to 1"),
    ((*RETRIEVE, "--not-found", "drop"), "'--not-found': 'drop' is not one of"),
    ((*RETRIEVE, "--filter", "genres=Drama"), """such as '{"genres": {"allow": ["Drama"]}}'"""),
    *(
        (("models", "--timeout", timeout), f"{timeout}: a positive number was expected")
        for timeout in ("soon", "0", "-1")
    ),
]
"""Arguments, and words that say what is wrong."""


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = written(tmp_path_factory.mktemp("bundles"), small_towers).directory.parents[1]
    with serving(root) as ways:
        yield ways


@pytest.mark.parametrize(("arguments", "call", "words"), COMMANDS.values(), ids=COMMANDS)
def test_command_prints_what_its_call_returns(
    arguments: tuple[str, ...],
    call: calls.Call[Any],
    words: list[str],
    ways: Ways,
    rowcast: Rowcast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = ("--url", ways.service.http)
    assert rowcast(*arguments, *address) == 0
    printed = capsys.readouterr().out
    assert not [word for word in words if word not in printed], printed
    call.request.model.name = "movies"
    result = ways.waiting["grpc"].send(call)
    assert rowcast(*address, "--json", *arguments) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert (as_json["model"], as_json["version"]) == ("movies", 1)
    expected = result if hasattr(result, "vectors") else result[0]
    name = "vectors" if hasattr(result, "vectors") else "ids"
    assert as_json[name] == getattr(expected, name).tolist()


def test_bench_prints_its_report_and_reports_that_nothing_succeeded(
    ways: Ways,
    rowcast: Rowcast,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    saved = tmp_path / "report.json"
    load = ("bench", "movies", "--call", "embed", "--seconds", "0.1", "--concurrency", "2")
    address = ("--url", ways.service.http)
    assert rowcast(*load, *address, "--save", str(saved)) == 0
    printed = capsys.readouterr()
    assert "movies version 1" in printed.out
    assert "0 failed" in printed.out
    assert "sending to movies" in printed.err
    assert rowcast(*load, *address, "--json", "--compare", str(saved)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["comparison"]["at"] == json.loads(saved.read_bytes())["at"]

    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"call": "lookup", "body": {"feature": "none", "ids": [1]}}')
    failing = ("bench", "movies", "--requests", str(requests), "--seconds", "0.1")
    assert rowcast(*failing, *address) == 1
    assert "NOT_FOUND: " in capsys.readouterr().out


def test_bench_saves_its_report_where_it_is_told_to(
    ways: Ways,
    rowcast: Rowcast,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    link = tmp_path / "latest.json"
    link.symlink_to("dated.json")
    load = ("bench", "movies", "--call", "embed", "--seconds", "0.1", "--json")
    address = ("--url", ways.service.http)
    assert rowcast(*load, *address, "--save", str(link)) == 0
    assert link.readlink() == Path("dated.json")
    report = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "dated.json").read_bytes()) == report

    # A report on standard output stands there alone, without --json as well.
    assert rowcast(*load[:-1], *address, "--save", "-") == 0
    assert json.loads(capsys.readouterr().out)["failed"] == 0

    # The figures are printed, too, if they cannot be saved: with an ending, the name is too long.
    unsaved = tmp_path / ("x" * 250)
    assert rowcast(*load, *address, "--save", str(unsaved)) == 6
    printed = capsys.readouterr()
    assert json.loads(printed.out)["failed"] == 0
    assert "cannot be written: File name too long" in printed.err


def test_models_are_listed_and_described(
    ways: Ways, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ("--url", ways.service.http)
    assert rowcast("models", *address) == 0
    assert "movies" in capsys.readouterr().out
    assert rowcast("model", "movies", *address) == 0
    printed = capsys.readouterr().out
    for words in ("tower ranking on cpu", "trunk", "per context", "or the context's id"):
        assert words in printed
    # The parts of a divided tower run, the whole does not.
    assert not re.search(r"│ whole +│ +│", printed)
    assert rowcast("model", "movies", *address, "--json") == 0
    described = ways.clients.http.get("/v1/models/movies").json()
    assert json.loads(capsys.readouterr().out) == described
    assert rowcast("--version") == 0
    assert capsys.readouterr().out == f"rowcast {version('rowcast-client')}\n"


def test_degraded_recommendations_are_marked(
    rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    response = pb.RecommendResponse(
        ids=pb.Ids(int64s=bytes(8)),
        scores=bytes(4),
        offsets=bytes(4) + b"\1\0\0\0",
        retrieval_scores=bytes(4),
        degraded=True,
        degraded_reason="out of time",
    )
    with grpc_server([response.SerializeToString()]) as server:
        assert rowcast("recommend", *USER, "--url", server.url) == 0
    assert "degraded: out of time" in capsys.readouterr().out


def test_token_is_that_of_the_environment_or_of_a_file(
    monkeypatch: pytest.MonkeyPatch,
    rowcast: Rowcast,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROWCAST_CLIENT_TOKEN", "from-the-environment")
    (tmp_path / "token").write_text("\ufefffrom-a-file\n")
    with http_server([OK]) as server:
        monkeypatch.setenv("ROWCAST_CLIENT_URL", server.url)
        assert rowcast(*EMBED) == 0
        assert rowcast("--token-file", str(tmp_path / "token"), *EMBED) == 0
        assert rowcast("--token-file", str(tmp_path / "none"), *EMBED) == 2
    authorizations = [headers["authorization"] for _, headers, _ in server.requests]
    assert authorizations == ["bearer from-the-environment", "bearer from-a-file"]
    assert "--token-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ROWCAST_CLIENT_TOKENS", "x", "did you mean ROWCAST_CLIENT_TOKEN?"),
        ("ROWCAST_CLIENT_TIME_OUT", "5", "did you mean ROWCAST_CLIENT_TIMEOUT?"),
        ("ROWCAST_URL", "http://127.0.0.1:1", "did you mean ROWCAST_CLIENT_URL?"),
        ("ROWCAST_CLIENT_TIMEOUT", "soon", "soon: a positive number was expected"),
    ],
)
def test_variable_with_a_wrong_name_or_value_is_rejected(
    variable: str,
    value: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    rowcast: Rowcast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert rowcast("models") == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("reply", "status"), CODES)
def test_rejected_call_prints_one_sentence_and_exits_by_its_code(
    reply: Any, status: int, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_server([reply]) as server:
        assert rowcast(*EMBED, "--url", server.url, "--timeout", "30") == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    code = "INVALID_RESPONSE" if isinstance(reply, bytes) else reply.code
    assert printed.err.startswith(f"rowcast: {code}: ")


def test_address_without_service_and_a_request_that_cannot_be_sent_are_named(
    rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_server([OK]) as server:
        gone = server.url
    assert rowcast("models", "--timeout", "1", "--url", gone) == 5
    assert capsys.readouterr().err.startswith(f"rowcast: UNREACHABLE: {gone}")
    assert rowcast("embed", "-f", "user:=true") == 3
    assert capsys.readouterr().err.startswith("rowcast: INVALID_ARGUMENT: feature 'user'")


@pytest.mark.parametrize(("arguments", "words"), USAGE)
def test_usage_error_exits_2_with_one_line(
    arguments: tuple[str, ...], words: str, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rowcast(*arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rowcast: ")
    assert printed.count("\n") == 1
    assert words in printed


def test_error_of_a_call_is_json_with_its_violations(
    rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    violation = {"field": "k", "value": "3", "expected": "at most 2"}
    details = pb.ErrorDetails(
        code=pb.ErrorCode.ERROR_CODE_TOO_LARGE,
        message="too many",
        request_id="r-1",
        violations=[pb.FieldViolation(**violation)],
    )
    page = http_page(details.SerializeToString(), status="413 Too Large")
    with http_server([page]) as server:
        assert rowcast(*EMBED, "--json", "--url", server.url) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert json.loads(printed.err)["error"] == {
        "code": "TOO_LARGE",
        "message": "too many (request id r-1)",
        "exit_code": 3,
        "request_id": "r-1",
        "address": server.url,
        "violations": [violation],
    }


READY = {
    http_server: http_page(b'{"ready":true}', "application/json"),
    grpc_server: HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString(),
}


@pytest.mark.parametrize(("serve", "reply"), READY.items())
def test_ready_exits_with_0_or_4(
    serve: Any, reply: bytes, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve([NOT_READY]) as away, serve([reply]) as usable:
        assert rowcast("ready", "--url", f"{away.url},{usable.url}", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"ready": True}
        assert rowcast("ready", "--url", away.url) == 4
        assert capsys.readouterr().out == "not ready\n"
    assert rowcast("ready", "--url", away.url) == 4
    with serve([Reply("UNAUTHENTICATED", 401, "UNAUTHENTICATED")]) as denying:
        assert rowcast("ready", "--url", denying.url) == 3
