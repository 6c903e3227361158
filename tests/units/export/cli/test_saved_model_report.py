from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from export.cli.saved_model_report import published_report

PROOF: dict[str, Any] = {
    "unverified": ["rows that no example reads"],
    "proved": True,
    "loaded_by": ["TensorFlow", "TensorFlow Serving"],
    "examples": 24,
    "max_abs_error": {"query": {"vector": 0.25, "other": 0.5}, "empty": {}},
    "note": "",
}
REPORT: dict[str, Any] = {
    "model": "movies",
    "version": 3,
    "verification": PROOF,
    "notes": ["seen"],
    "table_bytes": 2048,
    "data": "copied",
    "saved_model": "models/movies/3",
}
PUBLISHED = "published SavedModel models/movies/3 (2.0 KiB of tables, copied)"
UNVERIFIED = "not verified: rows that no example reads"


def lines_of(**proof: Any) -> list[str]:
    """Returns the lines that a terminal shows, without the frames of the table."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(published_report(REPORT | {"verification": PROOF | proof}))
    lines = (" ".join(line.replace("│", " ").split()) for line in captured.get().splitlines())
    return [line for line in lines if line and set(line) != {"─"}]


@pytest.mark.parametrize(
    ("loaded_by", "loader"),
    [
        (["TensorFlow", "TensorFlow Serving"], "TensorFlow and TensorFlow Serving"),
        ([], "the rows of the examples"),
    ],
)
def test_report_of_a_saved_model_tells_how_it_was_compared(
    loaded_by: list[str], loader: str
) -> None:
    against = f"the original model, 24 examples, by {loader}"
    assert lines_of(loaded_by=loaded_by) == [
        "movies version 3",
        "checked against result",
        f"signature query {against} largest difference 0.5",
        f"signature empty {against} largest difference 0",
        "note: seen",
        PUBLISHED,
        UNVERIFIED,
    ]


def test_report_of_a_saved_model_tells_that_it_was_not_compared() -> None:
    lines = lines_of(proved=False, max_abs_error={}, note="it does not fit into memory")
    assert lines[2:] == [
        "all signatures the original model NOT COMPARED (--unproved)",
        "note: seen",
        "note: it does not fit into memory",
        PUBLISHED,
        UNVERIFIED,
    ]
