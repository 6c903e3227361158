"""Where the fields of a class of the contract stand in JSON and in protobuf."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from service.contract.forms import (
    Columns,
    Division,
    Form,
    Lists,
    Names,
    Scalar,
    Struct,
    StructByName,
    Word,
    offsets_field,
)


class Field(NamedTuple):
    """A field of a class.

    Attributes:
      name: The name in the class and in protobuf.
      json: The name in JSON.
      form: How its values look.
      is_required: Whether it must be sent.
    """

    name: str
    json: str
    form: Form
    is_required: bool


@dataclass(frozen=True)
class Body:
    """How a request stands in JSON.

    Attributes:
      call: The call, whose name the schemas begin with.
      list_name: The field with a list of requests; "": there is none, and each field along an axis
        has a list with the values of all examples.
      is_list: Whether a body always has this list, and no request beside it.
      one_of: Fields of which each request has at most one.
      part_name: The name of the schema of one request in the list; "": RankQuery of rank.
      part_doc: The document's text of it.
      example: A body, for the quick start's model.
    """

    call: str
    list_name: str = "requests"
    is_list: bool = False
    one_of: tuple[str, ...] = ()
    part_name: str = ""
    part_doc: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The name of the schema of the body: UpsertContextsRequest of upsert_contexts."""
        return f"{self.call.title().replace('_', '')}Request"


class Layout(NamedTuple):
    """The fields of a class, by where they stand in JSON and in protobuf.

    Attributes:
      forms: The forms of all fields, by name.
      options: The fields at the top of a body, by their name in JSON.
      parts: The fields of each request, by their name in JSON.
      in_json: Both.
      names: The names at the top of a body.
      list_name, one_of: See `Body`.
      tables: The fields that hold columns.
      divisions: Whether absent offsets stand for one entry of each example, by field.
      lists: The fields whose ids a field of a message divides, by that field.
      by_name: The field with an object for each other name; "": other names are errors.
      of_others: The class of these objects.
      required: The fields that must be sent.
      is_nested: Whether objects of the class may lie in each other.
    """

    forms: Mapping[str, Form]
    options: Mapping[str, Field]
    parts: Mapping[str, Field]
    in_json: Mapping[str, Field]
    names: Sequence[str]
    list_name: str
    one_of: Sequence[str]
    tables: Sequence[str]
    divisions: Mapping[str, bool]
    lists: Mapping[str, str]
    by_name: str
    of_others: type[Any] | None
    required: Sequence[Field]
    is_nested: bool


@cache
def layout_of(cls: Any) -> Layout:
    """Returns the fields of a class.

    Raises:
      TypeError: A field has neither a form nor a type that implies its form.
    """
    hints = get_type_hints(cls, include_extras=True)
    fields_by_name: dict[str, Field] = {}
    # A named tuple is written whole.
    required = dict.fromkeys(hints, True)
    if is_dataclass(cls):
        required = {
            entry.name: entry.default is MISSING and entry.default_factory is MISSING
            for entry in fields(cls)
        }
    for name, is_required in required.items():
        # Transports read the model that serves a request: its name may stand in a URL. The target
        # of a change is another field.
        if name == "target" and get_origin(hints[name]) is not Annotated:
            continue
        form = _form_of(hints[name], f"{cls.__name__}.{name}")
        fields_by_name[name] = Field(name, form.name or name, form, is_required)

    body: Body | None = getattr(cls, "body", None)
    list_name = ""
    one_of: tuple[str, ...] = ()
    if body is not None:
        list_name = body.list_name
        one_of = body.one_of
    options: dict[str, Field] = {}
    parts: dict[str, Field] = {}
    divisions: dict[str, bool] = {}
    by_name = ""
    of_others: type[Any] | None = None
    for name, content in fields_by_name.items():
        match content.form:
            case Division(of_each=of_each):
                divisions[name] = of_each
            case StructByName(part_class=of_others):
                by_name = name
            case Form(in_json=False):
                pass
            case Form(axis=None):
                options[content.json] = content
            case _:
                parts[content.json] = content
    names = (*options, *parts, *filter(None, [list_name]))
    forms = {name: content.form for name, content in fields_by_name.items()}
    return Layout(
        forms=forms,
        options=options,
        parts=parts,
        in_json=options | parts,
        names=names,
        list_name=list_name,
        one_of=one_of,
        tables=[name for name, form in forms.items() if isinstance(form, Columns)],
        divisions=divisions,
        lists={offsets_field(name): name for name, form in forms.items() if type(form) is Lists},
        by_name=by_name,
        of_others=of_others,
        required=[content for content in fields_by_name.values() if content.is_required],
        is_nested=any(
            isinstance(form, Struct) and form.part_class is cls for form in forms.values()
        ),
    )


def _form_of(hint: Any, where: str) -> Form:
    """Returns the form that an annotation states, or that its type implies."""
    if get_origin(hint) is Annotated:
        stated: Form = hint.__metadata__[0]
        return stated
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not types.NoneType)
    arguments: tuple[Any, ...] = get_args(hint)
    form: Form | None = None
    if arguments == (str, ...):
        form = Names(limit="max_names")
    elif get_origin(hint) is tuple and _is_message(arguments[0]):
        form = Struct(part_class=arguments[0], is_list=True, fewest=1)
    elif get_origin(hint) is Mapping and _is_message(arguments[1]):
        form = StructByName(part_class=arguments[1])
    elif hint in (bool, int, float, str):
        form = Scalar(kind=hint)
    elif isinstance(hint, type) and issubclass(hint, StrEnum):
        form = Word(words=hint)
    elif _is_message(hint):
        form = Struct(part_class=hint)
    if form is None:
        raise TypeError(f"{where} is declared without a form")
    return form


def _is_message(hint: Any) -> TypeGuard[type[Any]]:
    return isinstance(hint, type) and is_dataclass(hint)
