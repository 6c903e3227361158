"""Fields that no release of today writes may change what others mean, wherever they are."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode, message, parse_text

UNKNOWN = bytes((0xA0, 0x3F, 0x02))
"""Field 1012, the number 2."""
FILLED: dict[str, dict[str, Any]] = {
    "BundleHeaderProto": {"num_shards": 1, "version": {"producer": 1}},
    "BundleEntryProto": {
        "dtype": 1,
        "shape": {"dim": [{"size": 4}]},
        "slices": [{"extent": [{"start": 1}]}],
    },
    "TrackableObjectGraph": {
        "nodes": [
            {
                "children": [{"node_id": 1, "local_name": "a"}],
                "attributes": [{"name": "VARIABLE_VALUE"}],
                "slot_variables": [{"slot_name": "m"}],
            }
        ]
    },
    "SparseCoreTableLayouts": {"tables": [{"table_name": "t"}]},
    "EmbeddingSpecProto": {
        "stacked_table_specs": [
            {"stack_name": "s", "table_specs": [{"feature_specs": [{"feature_name": "f"}]}]}
        ]
    },
}


def messages_in(parsed: Any) -> list[Any]:
    """Returns a message and all that are in it."""
    actual = [parsed]
    for field, value in parsed.ListFields():
        if field.message_type is not None:
            inner = list(value) if field.is_repeated else [value]
            actual += [entry for child in inner for entry in messages_in(child)]
    return actual


PLACES = [
    (kind, position)
    for kind, fields in FILLED.items()
    for position in range(len(messages_in(message(kind, **fields))))
]


@pytest.mark.parametrize("kind", FILLED)
def test_message_of_known_fields_is_decoded(kind: str) -> None:
    expected = message(kind, **FILLED[kind])
    assert decode(kind, expected.SerializeToString()) == expected


@pytest.mark.parametrize(("kind", "position"), PLACES)
def test_field_that_is_not_known_is_rejected_wherever_it_is(kind: str, position: int) -> None:
    changed = message(kind, **FILLED[kind])
    inner = messages_in(changed)[position]
    inner.MergeFromString(UNKNOWN)
    assert len(UnknownFieldSet(inner)) == 1
    with pytest.raises(
        Malformed, match=rf"these fields are unknown: {type(inner).__name__}\.1012\."
    ):
        decode(kind, changed.SerializeToString())


def test_field_that_is_not_known_is_rejected_in_text() -> None:
    text = b"""
        stacked_table_specs { column_order: 2 table_specs [{ feature_specs {} hash { x: 1 } }, {}] }
        # comment: 3
        stacked_table_specs { stack_name: "text: {" other: 4 }
    """
    unknown = (
        r"jax-tpu-embedding 0\.2\.0 \(the newest that is read\); these fields are unknown: "
        r"StackedTableSpecProto\.column_order, TableSpecProto\.hash, "
        r"StackedTableSpecProto\.other\. They may"
    )
    with pytest.raises(Malformed, match=unknown):
        parse_text("EmbeddingSpecProto", text)


def test_optimizer_of_any_release_is_passed_over() -> None:
    optimizer = b"optimizer { type: LION rates { key: 'a' value: 2 } }"
    text = b"stacked_table_specs { table_specs { %s combiner: 'sum' } }" % optimizer
    (stack,) = parse_text("EmbeddingSpecProto", text).stacked_table_specs
    assert stack.table_specs[0].combiner == "sum"
    stack.table_specs[0].optimizer.MergeFromString(UNKNOWN)
    decode("StackedTableSpecProto", stack.SerializeToString())


@pytest.mark.parametrize("kind", ["CheckpointState", "Example"])
def test_messages_that_no_row_order_depends_on_may_have_other_fields(kind: str) -> None:
    decode(kind, UNKNOWN)
