"""The messages of `proto/`, whose numbers are written by hand, have the fields of the contract."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from service.codec.protobuf import request_class, response_class
from service.contract import forms
from service.contract.layouts import layout_of
from service.contract.messages import REQUESTS, RESULTS

OF_TRANSPORT = {"model", "coverage", "dim"}
KINDS = {bool: "BOOL", float: "DOUBLE", int: "INT32", str: "STRING"}
TYPES = {number: name for name, number in vars(FieldDescriptor).items() if name[:5] == "TYPE_"}
MESSAGES = {"Columns": "Column", "Values": "Column", "Counts": "INT32", "Number": "Number"}


def _kind(field: FieldDescriptor) -> str:
    return str(TYPES[field.type].removeprefix("TYPE_"))


def _compare(cls: type, message: Descriptor) -> None:
    layout = layout_of(cls)
    assert {*layout.forms, *layout.lists} == {*message.fields_by_name} - {"model"}
    for name, form in layout.forms.items():
        field = message.fields_by_name[name]
        match form:
            case forms.Scalar():
                assert (_kind(field), field.is_repeated) == (KINDS[form.kind], False)
            case forms.Word(words=words):
                prefix = "NOT_FOUND_RULE"
                numbered = [f"{prefix}_{word.upper()}" for word in ("unspecified", *words)]
                assert [value.name for value in field.enum_type.values] == numbered
            case forms.Struct(part_class=of, is_list=is_list):
                assert field.is_repeated == is_list
                # A filter has filters.
                if of is not cls:
                    _compare(of, field.message_type)
            case forms.StructByName(part_class=of):
                _compare(of, field.message_type.fields_by_name["value"].message_type)
            case forms.Vectors() | forms.Division():
                assert _kind(field) == "BYTES"
            case forms.Names():
                assert (_kind(field), field.is_repeated) == ("STRING", True)
            case _:
                content = field.message_type.fields_by_name.get("value", field)
                kind = _kind(content)
                if content.message_type is not None:
                    kind = content.message_type.name
                assert kind == MESSAGES.get(type(form).__name__, "Ids")


def test_responses_have_the_fields_of_results() -> None:
    written = set[str]()
    for call, result in RESULTS.items():
        message = response_class(call).DESCRIPTOR
        layout = layout_of(result)
        written |= {*message.fields_by_name}
        assert {*message.fields_by_name} - OF_TRANSPORT <= {*layout.forms, *layout.lists}
    assert {name for result in RESULTS.values() for name in layout_of(result).forms} <= (
        written | {"version"}
    )


def test_messages_have_the_fields_of_the_contract() -> None:
    for call, request in REQUESTS.items():
        _compare(request, request_class(call).DESCRIPTOR)
