"""Results to JSON: numbers and ids as every parser keeps them, in pieces or at once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.codec import json as codec_json
from service.codec.operations import OPERATIONS
from service.contract.messages import (
    Explanation,
    LookupResult,
    RetrievalResult,
)


def test_ids_beyond_2_53_are_strings_and_scores_the_shortest_float32() -> None:
    ids = np.array([2**53 - 1, 2**53])
    scores = np.array([0.1, 1 / 3], np.float32)
    attributes: dict[str, list[Any]] = {"views": [2**60, None]}
    offsets = np.array([0, 2])
    result = RetrievalResult("movies", 3, ids, scores, offsets, attributes=attributes, searched=100)
    text = codec_json.dump(codec_json.response_value("retrieve", result, is_list=True))
    assert b'"ids":[9007199254740991,"9007199254740992"],"scores":[0.1,0.33333334],' in text
    assert json.loads(text)["results"][0]["attributes"] == {"views": [str(2**60), None]}


def test_integers_beyond_2_53_are_strings_wherever_they_stand() -> None:
    value = {
        "version": 2**53,
        "sequence": 2**53 - 1,
        "streams": {"a": -(2**53)},
        "lost": [(2**62,)],
    }
    assert json.loads(codec_json.dump(value)) == {
        "version": str(2**53),
        "sequence": 2**53 - 1,
        "streams": {"a": str(-(2**53))},
        "lost": [[str(2**62)]],
    }


def _large_results() -> list[tuple[str, Any]]:
    count = 20_000
    ids = np.arange(count) + 2**53 - 100
    numbers = np.linspace(-1, 1, count, dtype=np.float32)
    offsets = np.array([0, 5, 5, count])
    titles = {"title": [f"title {i}" for i in range(count)]}
    explanation = Explanation("index", 3, 0.5, 2, 0.125)
    rows = numbers[:19_200].reshape(-1, 64)
    is_found = np.arange(len(rows)) % 2 == 0
    return [
        (
            "recommend",
            RetrievalResult(
                "m",
                1,
                ids,
                numbers,
                offsets,
                attributes=titles,
                explanations=(explanation,) * 3,
                retrieval_scores=numbers,
                degraded_reason="late",
                coverage=0.5,
            ),
        ),
        ("lookup", LookupResult("m", 1, "users", rows, is_found)),
    ]


@pytest.mark.parametrize(("call", "result"), _large_results())
@pytest.mark.parametrize("is_list", [False, True])
def test_dump_in_pieces_gives_the_bytes_of_dump(call: str, result: Any, is_list: bool) -> None:
    write = OPERATIONS[call].write_json
    pieces = list(codec_json.dump_in_pieces(write(result, is_list)))
    assert b"".join(pieces) == codec_json.dump(write(result, is_list))
    assert max(map(len, pieces)) <= codec_json.PIECE_BYTES
