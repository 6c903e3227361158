"""Calls by context ids and with formulas that both doors are asked."""

from __future__ import annotations

from tests.service.cases import BAD, Case, floats, i32, ids, ints

CONTEXTS = (
    Case(
        "context by id",
        "rank",
        {"context_id": 7, "candidates": [1000, 1021], "heads": ["watch"]},
        {"context_ids": ids(7), "candidate_ids": ids(1000, 1021), "heads": ["watch"]},
    ),
    Case(
        "contexts by id, one feature overridden",
        "rank",
        {
            "requests": [
                {"context_id": 7, "context": {"hour": 0.5}, "candidates": [1000]},
                {"context_id": "21", "context": {"hour": 2}, "candidates": [1007, 1014]},
            ]
        },
        {
            "context_ids": ids(7, 21),
            "context": {"hour": floats(0.5, 2)},
            "candidate_ids": ids(1000, 1007, 1014),
            "offsets": i32(0, 1, 3),
        },
    ),
    Case(
        "unknown context with what has no default",
        "rank",
        {"context_id": 999, "context": {"user": 5}, "candidates": [1000]},
        {"context_ids": ids(999), "context": {"user": ints(5)}, "candidate_ids": ids(1000)},
    ),
    Case(
        "unknown context",
        "rank",
        {"context_id": 999, "candidates": [1000]},
        {"context_ids": ids(999), "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "two contexts for one request",
        "rank",
        {"requests": [{"context_id": 7, "candidates": [1000]}, {"context": {"user": 5}, "candidates": [1000]}]},
        {"context_ids": ids(7, 3), "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "context ids of another type",
        "rank",
        {"context_id": 0.5, "candidates": [1000]},
        {"context_ids": {"strings": {"values": ["seven"]}}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case("context by id", "retrieve", {"k": 3, "context_id": 7}, {"k": 3, "context_ids": ids(7)}),
    Case(
        "contexts by id beside a feature",
        "retrieve",
        {"k": 3, "requests": [{"context_id": 7, "features": {"hour": 1}}, {"context_id": 3, "features": {"hour": 2}}]},
        {"k": 3, "context_ids": ids(7, 3), "features": {"hour": ints(1, 2)}},
    ),
    Case(
        "context beside a vector",
        "retrieve",
        {"context_id": 7, "vector": [1] * 8},
        {"context_ids": ids(7), "vectors": floats(*[1.0] * 8).float32s},
        BAD,
    ),
    Case(
        "contexts by id",
        "recommend",
        {"k": 3, "candidates": 20, "requests": [{"context_id": 7}, {"context_id": 21}], "formula": "watch * 2"},
        {"k": 3, "candidates": 20, "context_ids": ids(7, 21), "formula": "watch * 2"},
    ),
    Case(
        "formula with heads",
        "rank",
        {
            "formula": "watch^0.7 * exp(-rating)",
            "heads": ["rating"],
            "k": 2,
            "context": {"user": 5},
            "candidates": [1000, 1007, 1014],
        },
        {
            "formula": "watch^0.7 * exp(-rating)",
            "heads": ["rating"],
            "k": 2,
            "context": {"user": ints(5)},
            "candidate_ids": ids(1000, 1007, 1014),
        },
    ),
    Case(
        "formula that ends early",
        "rank",
        {"formula": "watch *", "context": {"user": 5}, "candidates": [1000]},
        {"formula": "watch *", "context": {"user": ints(5)}, "candidate_ids": ids(1000)},
        BAD,
    ),
    Case(
        "formula of what is no output",
        "recommend",
        {"formula": "wach", "features": {"user": 5}},
        {"formula": "wach", "features": {"user": ints(5)}},
        BAD,
    ),
    Case(
        "formula without a value",
        "rank",
        {"formula": "log(-watch)", "context": {"user": 5}, "candidates": [1000]},
        {"formula": "log(-watch)", "context": {"user": ints(5)}, "candidate_ids": ids(1000)},
        BAD,
    ),
)
