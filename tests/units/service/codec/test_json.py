"""JSON bodies to requests, and results to JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.codec import json as codec_json
from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine.calls import (
    EmbeddingResult,
    Explanation,
    LookupResult,
    RankingResult,
    RetrievalResult,
    Target,
)
from service.errors import InvalidArgument

TARGET = Target("movies", 3)
SETTINGS = ServiceSettings(root=Path.cwd())


def _f32(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    "body",
    [
        b"[1e400]",
        b"",
        b"{",
        b"\xff",
        b'"\xc3\x28"',
        b'"\\ud800"',
        b"[" * 2_000,
    ],
)
def test_parse_of_what_is_not_json_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="the body is not valid JSON"):
        codec_json.parse(body, SETTINGS)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b"NaN",
            "the body has NaN at line 1 column 1; a finite number was expected; JSON has",
        ),
        (b'{"a": 1,\n "k": Infinity}', "the body has Infinity at line 2 column 7; "),
        (b'{"k": [0, -Infinity]}', "the body has -Infinity at line 1 column "),
    ],
)
def test_parse_of_a_number_that_is_not_finite_names_it(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        codec_json.parse(body, SETTINGS)


def test_integer_beyond_int64_is_rejected_with_the_range() -> None:
    body = codec_json.parse(b'{"k": 100000000000000000000, "context": {"a": 1}}', SETTINGS)
    with pytest.raises(
        InvalidArgument, match=r"k is about 100000000000000000000; an integer in \[-2\^63, 2\^63\)"
    ):
        _read("retrieve", body)


def _read(call: str, body: Any) -> Any:
    return OPERATIONS[call].read_json(body, TARGET, SETTINGS)


def test_retrieval_of_one_request_has_its_options() -> None:
    body = {
        "k": 5,
        "context": {"user": 7, "seen": [1, 2]},
        "exclude_ids": [9],
        "attributes": ["title"],
        "exact": True,
    }
    request = _read("retrieve", body)
    assert (request.target, request.k, request.attributes, request.exact) == (
        TARGET,
        5,
        ("title",),
        True,
    )
    assert {name: column.values.tolist() for name, column in request.context.items()} == {
        "user": [7],
        "seen": [1, 2],
    }
    assert request.exclude_ids.ids.tolist() == [9]
    assert (request.vectors, request.ids, request.filter) == (None, None, None)


def test_retrieval_of_a_list_packs_columns_and_exclusions_in_order() -> None:
    body = {"requests": [{"context": {"user": 7}, "exclude_ids": [1, 2]}, {"context": {"user": 8}}]}
    request = _read("retrieve", body)
    assert request.context["user"].values.tolist() == [7, 8]
    assert request.exclude_ids.offsets.tolist() == [0, 2, 2]


def test_retrieval_by_an_id_beyond_2_53_keeps_its_text() -> None:
    assert _read("retrieve", {"ids": ["9007199254740993"]}).ids.tolist() == ["9007199254740993"]


def test_ranking_of_one_context_owns_all_candidates() -> None:
    body = {
        "context": {"user": 1},
        "candidate_ids": [10, 20, 30],
        "candidate_features": {"price": [1, 2, 3.5]},
        "heads": ["ctr"],
    }
    request = _read("rank", body)
    assert request.candidate_ids.tolist() == [10, 20, 30]
    assert request.candidate_features["price"].values.tolist() == [1.0, 2.0, 3.5]
    assert (request.offsets.tolist(), request.heads) == ([0, 3], ("ctr",))


def test_ranking_by_features_alone_counts_candidates_by_their_values() -> None:
    first = {"context": {"user": 1}, "candidate_features": {"genres": [[1], [2, 3]]}}
    request = _read(
        "rank",
        {"requests": [first, {"context": {"user": 2}, "candidate_features": {"genres": [[4]]}}]},
    )
    assert request.candidate_ids is None
    assert request.offsets.tolist() == [0, 2, 3]
    assert request.candidate_features["genres"].offsets.tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("call", "body", "expected"),
    [
        ("retrieve", [], "a JSON object was expected"),
        ("retrieve", {"k": True, "ids": [1]}, "k is true"),
        ("retrieve", {"exact": 1, "ids": [1]}, "true or false"),
        ("retrieve", {"attributes": "title", "ids": [1]}, "a list was expected"),
        ("retrieve", {"attributes": [1], "ids": [1]}, "a string was expected"),
        ("retrieve", {"ids": [1], "vectors": [[1.0]]}, "both 'vectors' and 'ids'"),
        (
            "retrieve",
            {"requests": [{"ids": [1]}, {"vectors": [[1.0]]}]},
            "requests has differ",
        ),
        (
            "retrieve",
            {"requests": [{"vectors": [[1.0]]}, {"vectors": [[1.0, 2.0]]}]},
            "vectors has lengths [1, 2]",
        ),
        ("retrieve", {"requests": []}, "requests is empty"),
        ("retrieve", {"requests": [1]}, "requests[0] is 1"),
        ("retrieve", {"requests": [{"ids": [1], "k": 3}]}, "requests[0] has the unknown field 'k'"),
        (
            "retrieve",
            {"requests": [{"ids": [1]}], "exclude_ids": [1]},
            "'exclude_ids' belongs in each",
        ),
        ("retrieve", {"context": 3}, "a JSON object of features"),
        (
            "retrieve",
            {"requests": [{"context": {"a": 1}}, {"context": {"b": 1}}]},
            "requests[1].context differs from that of requests[0] in 'a'",
        ),
        ("retrieve", {"crowding": {"studio": 1.5}}, "crowding.studio is 1.5; an integer was exp"),
        ("retrieve", {"crowding": ["studio"]}, "crowding is"),
        ("retrieve", {"filter": 3, "ids": [1]}, "a JSON object was expected"),
        ("retrieve", {"filter": {"any": []}}, "filter.any is empty; at least one was expected"),
        ("retrieve", {"filter": {"any": [{"all": [3]}]}}, "filter.any[0].all[0] is 3; a JSON"),
        (
            "retrieve",
            {"filter": {"none": [{}, {"year": {"from": 3}}]}},
            "filter.none[1].year has the unknown field 'from'",
        ),
        ("retrieve", {"filter": {"any": "year"}}, "filter.any is 'year'"),
        ("retrieve", {"filter": {"year": {"is_null": 1}}}, "filter.year.is_null is 1; true or"),
        (
            "retrieve",
            {"filter": {"near": [{"latitude": 1, "longitude": "2", "radius_m": 3}]}},
            "filter.near[0].longitude is '2'; a number was expected",
        ),
        (
            "retrieve",
            {"filter": {"near": [{"latitude": 1, "longitude": 2}]}},
            "filter.near[0].radius_m is null; a number was expected",
        ),
        ("retrieve", {"filter": {"near": [3]}}, "filter.near[0]"),
        (
            "rank",
            {"context": {}, "candidate_ids": [1, 2], "candidate_features": {"p": [1]}},
            "1 values for 2 candidates",
        ),
        (
            "rank",
            {"context": {}, "candidate_features": {"p": [1], "q": [1, 2]}},
            "2 values for 1 candidates",
        ),
        ("recommend", {"context": {"a": [None]}}, "context.a holds null"),
        ("embed", {"tower": 3, "features": {}}, "a string was expected"),
        ("lookup", {"feature": "user"}, "ids is null"),
        ("lookup", {"feature": "user", "ids": [1], "requests": []}, "unknown field 'requests'"),
    ],
)
def test_readers_of_a_body_that_does_not_fit_name_the_field(
    call: str, body: Any, expected: str
) -> None:
    with pytest.raises(InvalidArgument) as rejected:
        OPERATIONS[call].read_json(body, TARGET, SETTINGS)
    assert expected in str(rejected.value)
    (violation,) = rejected.value.violations
    assert violation.field in str(rejected.value)


def _retrieved() -> RetrievalResult:
    ids = np.array([2**53 - 1, 2**53, 3])
    offsets = np.array([0, 2, 3])
    attributes: dict[str, list[Any]] = {
        "title": ["A", None, "C"],
        "tags": [["x"], [], None],
        "views": [1, 2**60, None],
    }
    scores = _f32(0.1, 1 / 3, 1e-30)
    return RetrievalResult("movies", 3, ids, scores, offsets, attributes, searched=100)


def test_retrieved_ids_beyond_2_53_are_strings_and_scores_the_shortest_float32() -> None:
    text = codec_json.dump(codec_json.retrieved_value(_retrieved(), is_list=True))
    assert b'"ids":[9007199254740991,"9007199254740992"],"scores":[0.1,0.33333334],' in text
    value = json.loads(text)
    assert (value["model"], value["version"], value["searched"]) == ("movies", 3, 100)
    assert [len(result["ids"]) for result in value["results"]] == [2, 1]
    assert value["results"][0]["attributes"] == {
        "title": ["A", None],
        "tags": [["x"], []],
        "views": [1, str(2**60)],
    }
    assert np.float32(value["results"][1]["scores"][0]) == np.float32(1e-30)


def test_ranked_has_the_order_of_the_scores_positions_and_heads() -> None:
    heads = {"ctr": _f32(0.5, 0.25, 0.125)}
    positions = np.array([1, 0, 0], np.int32)
    result = RankingResult(
        "m", 1, np.array([5, 6, 7]), positions, _f32(3, 2, 1), heads, np.array([0, 2, 3])
    )
    value = json.loads(codec_json.dump(codec_json.ranked_value(result, is_list=True)))
    assert value["results"][0] == {
        "ids": [5, 6],
        "scores": [3, 2],
        "positions": [1, 0],
        "heads": {"ctr": [0.5, 0.25]},
    }
    assert value["results"][1]["ids"] == [7]


def _large_results() -> list[tuple[str, Any]]:
    count = 20_000
    ids = np.arange(count) + 2**53 - 100
    numbers = np.linspace(-1, 1, count, dtype=np.float32)
    offsets = np.array([0, 5, 5, count])
    titles = {"title": [f"title {i}" for i in range(count)]}
    explanation = Explanation("index", 3, 0.5, 2, 0.125)
    positions = np.arange(count, dtype=np.int32)
    rows = numbers[:19_200].reshape(-1, 64)
    is_found = np.arange(len(rows)) % 2 == 0
    return [
        (
            "retrieve",
            RetrievalResult("m", 1, ids, numbers, offsets, titles, (explanation,) * 3, searched=9),
        ),
        (
            "recommend",
            RetrievalResult(
                "m",
                1,
                ids,
                numbers,
                offsets,
                titles,
                retrieval_scores=numbers,
                degraded_reason="late",
                coverage=0.5,
            ),
        ),
        ("rank", RankingResult("m", 1, ids, positions, numbers, {"click": numbers}, offsets)),
        ("embed", EmbeddingResult("m", 1, rows)),
        ("lookup", LookupResult("m", 1, "users", rows, is_found)),
        ("lookup", LookupResult("m", 1, "users", rows[:0], is_found[:0])),
    ]


@pytest.mark.parametrize(("call", "result"), _large_results())
@pytest.mark.parametrize("is_list", [False, True])
def test_dump_in_pieces_gives_the_bytes_of_dump(call: str, result: Any, is_list: bool) -> None:
    write = OPERATIONS[call].write_json
    pieces = list(codec_json.dump_in_pieces(write(result, is_list)))
    assert b"".join(pieces) == codec_json.dump(write(result, is_list))
    assert {len(piece) for piece in pieces[:-1]} <= {codec_json.PIECE_BYTES}
    assert len(pieces[-1]) <= codec_json.PIECE_BYTES


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)
)
def test_scores_read_back_as_the_same_float32(scores: list[float]) -> None:
    written = np.array(scores, dtype=np.float32)
    read = np.array(json.loads(codec_json.dump(written)), dtype=np.float64).astype(np.float32)
    assert (read == written).all()
