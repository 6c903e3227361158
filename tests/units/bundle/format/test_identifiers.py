"""Names of tensors."""

from __future__ import annotations

from bundle.format.identifiers import distinct_identifiers, identifier


def test_identifiers_are_valid_and_distinct() -> None:
    assert [identifier(name) for name in ("a b", "7", "", "class", "_x")] == [
        "a_b",
        "input_7",
        "input_",
        "input_class",
        "input__x",
    ]
    assert distinct_identifiers(["a b", "a_b", "a-b"]) == {
        "a b": "a_b",
        "a_b": "a_b_",
        "a-b": "a_b__",
    }
