"""Classes of the contract to protobuf messages, by the forms of their fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor

from service.contract.forms import Form, Head, Records, Struct, StructByName
from service.contract.layouts import layout_of


def write_message(request: Any, message: Any) -> Any:
    """Writes the fields of a request or of a result, or of a part of one, into an empty message of
    its kind, and returns it; not the model that it names, nor what the message does not have.
    """
    for name, form in _written_forms(request.__class__, message.DESCRIPTOR):
        value = getattr(request, name)
        if value is None:
            continue
        match form:
            case StructByName():
                for key, element in value.items():
                    _write_submessage(element, getattr(message, name)[key])
            case Struct(is_list=True) | Records():
                for element in value:
                    write_message(element, getattr(message, name).add())
            case Struct():
                _write_submessage(value, getattr(message, name))
            case _:
                form.write(message, name, value)
    return message


@cache
def _written_forms(cls: Any, message: Descriptor) -> list[tuple[str, Form]]:
    forms = layout_of(cls).forms.items()
    return [
        (name, form)
        for name, form in forms
        if name in message.fields_by_name and type(form) is not Head
    ]


def _write_submessage(part: Any, message: Any) -> None:
    # Present even if all of its fields are at their defaults.
    message.SetInParent()
    write_message(part, message)
