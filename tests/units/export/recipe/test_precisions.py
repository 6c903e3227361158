"""Precisions, limits, labels and recorded outputs of a recipe refer to what it has."""

from __future__ import annotations

from typing import Any

import pytest

from export.errors import UsageError
from export.recipe.precisions import check_precisions
from export.recipe.schema import ExportJob

EXAMPLES = {"examples": "examples.jsonl"}
TOWERS: dict[str, Any] = {
    "query": {"role": "query", "outputs": {"vector": "q"}},
    "rank": {"role": "ranking", "outputs": {"click": "c", "buy": "b"}, "result": "click"},
    "other": {"role": "candidate", "outputs": {"vector": "c"}},
    "plain": {"role": "query"},
}


def check(rank: dict[str, Any], **verify: Any) -> None:
    check_precisions(
        ExportJob.model_validate(
            {
                "model": "m",
                "checkpoint": {"path": "ckpt"},
                "code": {"factory": "model.py:build"},
                "inputs": {},
                "towers": TOWERS | {"rank": TOWERS["rank"] | rank},
                "output": {"root": "bundles"},
                "verify": verify,
            }
        )
    )


@pytest.mark.parametrize(
    ("rank", "verify"),
    [
        ({}, {}),
        ({"precisions": ["int8"], "max_abs_error": {"int8": 1}, "serve": "int8"}, {}),
        # f32 is always written.
        ({"precisions": ["int8"], "max_abs_error": {"int8": 1}, "serve": "f32"}, {}),
        ({"precisions": ["f32", "bf16"], "max_abs_error": {"bf16": 1}}, {}),
        (
            {
                "precisions": ["f32", "int8"],
                "max_abs_error": {"int8": 1},
                "overlap_min": {"int8": 0.9},
            },
            {},
        ),
        ({}, EXAMPLES | {"labels": {"click": "clicked", "result": "seen"}}),
        ({}, EXAMPLES | {"labels": {"vector": "seen"}}),
        ({}, EXAMPLES | {"expected": {"click": "clicked", "result": "seen"}}),
        ({}, EXAMPLES | {"expected": {"query.vector": "seen", "other.vector": "also"}}),
    ],
)
def test_recipe_whose_limits_and_labels_have_what_they_refer_to_is_accepted(
    rank: dict[str, Any], verify: dict[str, Any]
) -> None:
    check(rank, **verify)


@pytest.mark.parametrize(
    ("rank", "verify", "problem"),
    [
        (
            {"precisions": ["f32", "int8"]},
            {},
            "towers.rank.precisions has 'int8', which has no parity rule; state its limit as "
            "towers.rank.max_abs_error.int8",
        ),
        (
            {"precisions": ["int8", "bf16"], "max_abs_error": {"int8": 1}},
            {},
            "towers.rank.precisions has 'bf16', which has no parity rule; state its limit as "
            "towers.rank.max_abs_error.bf16",
        ),
        (
            {"serve": "int8"},
            {},
            "towers.rank.serve is 'int8', and towers.rank.precisions has no 'int8'",
        ),
        (
            {"overlap_min": {"int8": 0.9}},
            {},
            "towers.rank.overlap_min limits 'int8', and towers.rank.precisions has none",
        ),
        (
            {},
            EXAMPLES | {"labels": {"clicks": "clicked"}},
            "verify.labels names output 'clicks'; the towers have buy, click, result, vector",
        ),
        (
            {},
            EXAMPLES | {"labels": {"rank.click": "clicked"}},
            "verify.labels names output 'rank.click'; the towers have buy, click, result, vector",
        ),
        (
            {},
            EXAMPLES | {"expected": {"rank.vector": "seen"}},
            "verify.expected names output 'rank.vector'; the towers have buy, click, result, "
            "vector",
        ),
        (
            {},
            EXAMPLES | {"expected": {"vector": "seen"}},
            "verify.expected.vector: towers query, other have it; write 'query.vector'",
        ),
        (
            {},
            {"labels": {"click": "clicked"}},
            "verify.labels names columns of verify.examples, which is not given",
        ),
        (
            {},
            {"expected": {"rank.click": "clicked"}},
            "verify.expected names columns of verify.examples, which is not given",
        ),
    ],
)
def test_recipe_whose_limits_or_labels_refer_to_nothing_is_rejected(
    rank: dict[str, Any], verify: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as rejection:
        check(rank, **verify)
    assert str(rejection.value) == problem
