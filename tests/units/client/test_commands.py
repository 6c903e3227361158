"""The command line against small servers: exit codes, one sentence per failure, what is printed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from rowcast_client import calls, where
from rowcast_client.commands import parse_feature
from rowcast_client.stubs import embedding_service_pb2 as pb

from tests.units.client.servers import NOT_READY, OK, Reply, grpc_server, http_page, http_server

Rowcast = Callable[..., int]


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("user=5", ("user", 5)),
        ("user=-5", ("user", -5)),
        ("history=1,2,3", ("history", [1, 2, 3])),
        ("history=1,", ("history", [1])),
        ("history=,", ("history", [])),
        ("genres=drama,comedy", ("genres", ["drama", "comedy"])),
        ("mood=0.5,-1,2e3", ("mood", [0.5, -1.0, 2000.0])),
        ("zip=02139", ("zip", "02139")),
        ("mixed=1,a", ("mixed", ["1", "a"])),
        ("city=a=b", ("city", "a=b")),
        ("name=nan", ("name", "nan")),
        ("name=", ("name", "")),
        ('zip:="5"', ("zip", "5")),
        ('liked:={"ids":[1],"weights":[0.5]}', ("liked", {"ids": [1], "weights": [0.5]})),
    ],
)
def test_parse_feature_of_a_written_value_takes_its_natural_kind(
    text: str, feature: tuple[str, Any]
) -> None:
    name, value = parse_feature(text)
    assert (name, value) == feature
    assert type(value) is type(feature[1])


@pytest.mark.parametrize("text", ["user", "=5", ":=5", "user:={"])
def test_parse_feature_of_anything_else_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected name=value|not valid JSON"):
        parse_feature(text)


@pytest.mark.parametrize("serving", [http_server, grpc_server])
def test_rowcast_takes_options_of_the_connection_before_and_after_the_command(
    serving: Any, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    embed = ("embed", "-f", "user=5", "--model", "m")
    printed = []
    for before in (True, False):
        with serving([OK]) as server:
            options = ("--url", server.url, "--timeout", "5", "--json")
            assert rowcast(*(*options, *embed) if before else (*embed, *options)) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]


def test_rowcast_prints_its_version(rowcast: Rowcast, capsys: pytest.CaptureFixture[str]) -> None:
    assert rowcast("--version") == 0
    assert capsys.readouterr().out == f"rowcast {version('rowcast-client')}\n"


@pytest.mark.parametrize("serving", [http_server, grpc_server])
def test_rowcast_embed_prints_a_table_or_json(
    serving: Any, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving([OK]) as server:
        embed = ("embed", "-f", "user=5", "--model", "m", "--url", server.url)
        assert rowcast(*embed) == 0
        printed = capsys.readouterr().out
        assert "m version 7" in printed
        assert "0.5000 2.0000" in printed
        assert rowcast(*embed, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {
            "model": "m",
            "version": 7,
            "vectors": [[0.5, 2.0]],
        }


def test_rowcast_recommend_sends_what_is_selected_and_shows_how_it_was_found(
    rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    explained = pb.Explanation(
        path=pb.SEARCH_PATH_EXACT,
        matches=3,
        selectivity=0.25,
        scored=3,
        search_ms=0.5,
        shortfall="3 match",
    )
    response = pb.RecommendResponse(
        model=pb.ModelSpec(name="m", version=7),
        ids=pb.Ids(int64s=struct.pack("<q", 5)),
        scores=struct.pack("<f", 2.0),
        retrieval_scores=struct.pack("<f", 0.5),
        explanations=[explained],
        degraded=True,
        degraded_reason="out of time",
    )
    options = (
        "--crowding",
        "seller:3,year:1",
        "--diversity",
        "0.5",
        "--min-score=-1",
        "--recall",
        "0.9",
        "--explain",
    )
    with grpc_server([response.SerializeToString()]) as server:
        recommend = (
            "recommend",
            "-f",
            "user=5",
            "--filter",
            '{"year": {"ge": 1990}}',
            *options,
            "--url",
            server.url,
        )
        assert rowcast(*recommend) == 0
        printed = capsys.readouterr().out
        assert "path exact: 3 candidates match (25.00%), 3 scored, 0.50 ms; 3 match" in printed
        assert "degraded: out of time" in printed
        assert rowcast(*recommend, "--json") == 0
        response = json.loads(capsys.readouterr().out)
    assert response["explanation"]["matches"] == 3
    assert (response["degraded"], response["degraded_reason"]) == (True, "out of time")
    request = pb.RecommendRequest.FromString(server.requests[0][2])
    assert (
        request
        == calls.recommend(
            {"user": 5},
            filter=where("year").at_least(1990),
            crowding={"seller": 3, "year": 1},
            diversity=0.5,
            min_score=-1,
            recall=0.9,
            explain=True,
        ).request
    )


def test_rowcast_with_a_token_sends_it_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch,
    rowcast: Rowcast,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    embed = ("embed", "-f", "user=5", "--model", "m", "--url")
    monkeypatch.setenv("ROWCAST_CLIENT_TOKEN", "from-the-environment")
    (tmp_path / "token").write_text("from-a-file\n")
    with http_server([OK]) as server:
        assert rowcast(*embed, server.url) == 0
        assert rowcast("--token-file", str(tmp_path / "token"), *embed, server.url) == 0
        assert rowcast("--token-file", str(tmp_path / "none"), *embed, server.url) == 2
    headers_sent = [headers["authorization"] for _, headers, _ in server.requests]
    assert headers_sent == ["bearer from-the-environment", "bearer from-a-file"]
    assert "--token-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply("INVALID_ARGUMENT", 400, "INVALID_ARGUMENT"), 3),
        (Reply("NOT_FOUND", 404, "NOT_FOUND"), 3),
        (Reply("UNAUTHENTICATED", 401, "UNAUTHENTICATED"), 3),
        (Reply("PERMISSION_DENIED", 403, "PERMISSION_DENIED"), 3),
        (Reply("TOO_LARGE", 413, "RESOURCE_EXHAUSTED"), 3),
        (Reply("DEADLINE", 504, "DEADLINE_EXCEEDED"), 4),
        (Reply("DATA_LOSS", 500, "DATA_LOSS"), 1),
        (Reply("INTERNAL", 500, "INTERNAL"), 1),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", 5),
    ],
)
def test_rowcast_rejected_prints_one_sentence_and_exits_by_code(
    reply: Any, status: int, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_server([reply]) as server:
        assert rowcast("embed", "-f", "user=5", "--model", "m", "--url", server.url) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(
        "INVALID_RESPONSE: " if isinstance(reply, bytes) else f"{reply.code}: a sentence"
    )


def test_rowcast_of_a_service_that_is_not_ready_exits_4(
    rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    # The next try would begin after the deadline, so that there is none.
    with http_server([replace(NOT_READY, retry_after="60")]) as server:
        assert (
            rowcast("embed", "-f", "user=5", "-m", "m", "--url", server.url, "--timeout", "30") == 4
        )
    assert capsys.readouterr().err.startswith("NOT_READY: ")


def test_rowcast_of_an_address_without_service_exits_5_and_names_it(
    monkeypatch: pytest.MonkeyPatch, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    with http_server([OK]) as server:
        gone = server.url
    monkeypatch.setenv("ROWCAST_CLIENT_URL", gone)
    assert rowcast("models", "--timeout", "1") == 5
    assert capsys.readouterr().err.startswith(f"UNREACHABLE: {gone} cannot be reached")


@pytest.mark.parametrize(
    "arguments",
    [
        ("retrieve", "-f", "user"),
        ("retrieve", "-f", "user=1", "-f", "user=2"),
        ("retrieve", "-k", "many"),
        ("retrieve", "-k", "0"),
        ("rank",),
        ("rankk",),
        ("lookup", "-f", "user"),
        ("retrieve", "--filter", "{"),
        ("retrieve", "--crowding", "seller"),
        ("recommend", "--crowding", "seller:many"),
    ],
)
def test_rowcast_with_a_usage_error_exits_2(
    arguments: tuple[str, ...], rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rowcast(*arguments) == 2
    assert "error: " in capsys.readouterr().err


def test_rowcast_with_a_request_that_cannot_be_sent_exits_3(
    rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rowcast("embed", "-f", "user:=true") == 3
    assert capsys.readouterr().err.startswith("INVALID_ARGUMENT: feature 'user' holds bool")


READY_PAGE = http_page(b'{"ready":true}', "application/json")
READY_MESSAGE = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()


@pytest.mark.parametrize(
    ("serving", "reply"), [(http_server, READY_PAGE), (grpc_server, READY_MESSAGE)]
)
def test_rowcast_ready_exits_with_0_or_4(
    serving: Any, reply: bytes, rowcast: Rowcast, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving([NOT_READY]) as away, serving([reply]) as usable:
        assert rowcast("ready", "--url", usable.url) == 0
        assert capsys.readouterr().out == "ready\n"
        assert rowcast("ready", "--url", f"{away.url},{usable.url}", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"ready": True}
        assert rowcast("ready", "--url", away.url) == 4
        assert capsys.readouterr().out == "not ready\n"
    assert rowcast("ready", "--url", away.url) == 4
    with serving([Reply("UNAUTHENTICATED", 401, "UNAUTHENTICATED")]) as denying:
        assert rowcast("ready", "--url", denying.url) == 3
