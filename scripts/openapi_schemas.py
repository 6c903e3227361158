"""The schemas of the OpenAPI document: of the bodies that `service.contract` reads, as pydantic
models, and of the messages of the contract.

Fields with a name of their own (`TypeAliasType`) are named schemas in the document, so that
generated clients have one type for each.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
from message_records import Contract, schemas
from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypeAliasType

from service.codec.json import fields_of_response
from service.contract import change_forms, forms, layouts
from service.contract.changes import CHANGES
from service.contract.forms import Axis
from service.contract.layouts import Body, Layout, layout_of
from service.contract.messages import REQUESTS, RESULTS, Source
from service.openapi import ABSENT, Int64, ResponseSchema

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = "rowcast/embedding/v1/embedding_service.proto"
_CLOSED = ConfigDict(extra="forbid")

Integer = TypeAliasType(
    "Integer",
    Annotated[
        Int64 | str, Field(description="An integer; beyond 2^53 it travels as a decimal string.")
    ],
)
Id = TypeAliasType(
    "Id",
    Annotated[Int64 | str, Field(description="Integers beyond 2^53 travel as decimal strings.")],
)
Features = TypeAliasType(
    "Features",
    Annotated[
        dict[str, Any],
        Field(
            description="By feature name: a scalar; a list (bag, sequence, dense); or "
            "{ids, weights} of a weighted bag."
        ),
    ],
)
CandidateFeatures = TypeAliasType(
    "CandidateFeatures",
    Annotated[
        dict[str, list[Any]],
        Field(description="By feature name: one value for each candidate, in their order."),
    ],
)
Crowding = TypeAliasType(
    "Crowding",
    Annotated[
        dict[str, int],
        Field(
            description="Maximum number of neighbors with the same value of an attribute, by "
            "attribute. Candidates without a value are not limited."
        ),
    ],
)

Bound = TypeAliasType(
    "Bound",
    Annotated[
        float | str,
        Field(description="A number; an integer beyond 2^53 travels as a decimal string."),
    ],
)
AttributeValues = TypeAliasType(
    "AttributeValues",
    Annotated[
        dict[str, Any],
        Field(description="By name: a value, a list of them, or null where there is none."),
    ],
)
Vectors = TypeAliasType(
    "Vectors", Annotated[dict[str, list[float]], Field(description="By name of the index.")]
)


AttributeColumns = TypeAliasType(
    "AttributeColumns",
    Annotated[
        dict[str, list[Any]],
        Field(description="By name: one value per neighbor, null where a neighbor has none."),
    ],
)
Heads = TypeAliasType(
    "Heads",
    Annotated[dict[str, list[float]], Field(description="By output: one value per candidate.")],
)


@cache
def model_of(cls: Any) -> type[BaseModel]:
    """Returns the model of the JSON of a class: of a request, its options, and one request beside
    them or a list of requests.
    """
    layout = layout_of(cls)
    if layout.of_others is not None:
        return _open_model(cls, layout, layout.of_others)
    body: Body | None = getattr(cls, "body", None)
    fields = _fields_of(cls, layout.in_json.values())
    if issubclass(cls, tuple):
        return _open_response(cls.__name__, cls.__doc__, fields)
    if body is None:
        return create_model(cls.__name__, __doc__=cls.__doc__, __config__=_CLOSED, **fields)

    if layout.list_name:
        of_part = {field: fields[field] for field in layout.parts}
        part_name = body.part_name or f"{body.call.title()}Query"
        part = create_model(part_name, __doc__=body.part_doc, __config__=_CLOSED, **of_part)
        content = ABSENT
        if body.is_list:
            fields = {field: fields[field] for field in layout.options}
            content = ...
        fields[layout.list_name] = (list[part], content)
    config = ConfigDict(extra="forbid", json_schema_extra={"examples": [dict(body.example)]})
    return create_model(body.schema, __doc__=cls.__doc__, __config__=config, **fields)


def response_of(
    call: str, options: list[layouts.Field], parts: list[layouts.Field]
) -> type[BaseModel]:
    """Returns the model of the JSON of a call's response: options, and one result beside them or a
    list of results.
    """
    cls = RESULTS[call]
    name = call.title()
    if not REQUESTS[call].body.list_name:
        return _open_response(f"{name}Response", cls.__doc__, _fields_of(cls, options + parts))

    of_part = _fields_of(cls, [field._replace(is_required=False) for field in parts])
    part: Any = _open_response(f"{name}Result", cls.__doc__, of_part)
    # Of the options, the coverage alone is left out.
    written = [field._replace(is_required=field.name != "coverage") for field in options]
    of_body = _fields_of(cls, written) | of_part | {"results": (list[part], ABSENT)}
    doc = "The result of one request, or the results of a list."
    return _open_response(f"{name}Response", doc, of_body)


def schemas_of(models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """Returns the schemas of models, and of what is in them, by name."""
    schemas: dict[str, Any] = {}
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    return schemas


def call_schemas() -> dict[str, Any]:
    """Returns the schemas of the bodies and responses of all calls, and of what is in them."""
    requests = map(model_of, REQUESTS.values())
    responses = [response_of(call, *fields_of_response(call)) for call in REQUESTS]
    return schemas_of([*requests, *responses])


@cache
def message_schemas() -> dict[str, Any]:
    """Returns the schemas of the messages about models and changes, by name."""
    with TemporaryDirectory() as directory:
        descriptors = Path(directory, "contract.binpb")
        options = [
            "--include_source_info",
            "--include_imports",
            f"--descriptor_set_out={descriptors}",
        ]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *options, CONTRACT]
        subprocess.run(command, cwd=ROOT, check=True)
        return schemas(Contract(descriptors.read_bytes()))


def change_schemas() -> dict[str, Any]:
    """Returns the schemas of the bodies of all changes, and of what is in them, by name."""
    return schemas_of(map(model_of, CHANGES.values()))


def _open_response(name: str, doc: str | None, fields: Mapping[str, Any]) -> type[BaseModel]:
    return create_model(name, __doc__=doc, __base__=ResponseSchema, **fields)


def _open_model(cls: Any, layout: Layout, of_others: Any) -> type[BaseModel]:
    """Returns the model of a class whose objects may have any field."""
    # In TypeScript, the type of the other fields has to include those of the named ones.
    forms_of_options = [field.form for field in layout.options.values()]
    kinds: dict[str, Any] = {
        form.part_class.__name__: form.part_class
        for form in forms_of_options
        if type(form) is forms.Struct
    }
    extra = " | ".join([of_others.__name__, *[f"list[{name}]" for name in kinds]])
    namespace = {
        "__annotations__": {"__pydantic_extra__": f"dict[str, {extra}]"},
        "__module__": __name__,
        "model_config": ConfigDict(extra="allow"),
    }
    base = type("Open", (BaseModel,), namespace)
    model: type[BaseModel] = create_model(
        cls.__name__, __doc__=cls.__doc__, __base__=base, **_fields_of(cls, layout.in_json.values())
    )
    models = {name: model_of(kind) for name, kind in kinds.items() if kind is not cls}
    models |= {cls.__name__: model, of_others.__name__: model_of(of_others)}
    model.model_rebuild(_types_namespace=models)
    return model


def _fields_of(cls: Any, declared: Iterable[layouts.Field]) -> dict[str, Any]:
    """Returns the type and the description of each field, as pydantic takes them."""
    docs = _docs_of(cls)
    fields = {}
    for field in declared:
        content = Field(description=docs.get(field.name), default_factory=lambda: None)
        if field.is_required:
            content = Field(description=docs.get(field.name))
        fields[field.json] = (_type_of(field.form, cls), content)
    return fields


def _docs_of(cls: Any) -> dict[str, str]:
    """Returns the texts below the fields of a class and of its bases."""
    docs = {}
    for base in reversed(cls.__mro__):
        if base.__module__ == "builtins":
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, text in pairwise(definition.body):
            match statement, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(doc))
                ):
                    docs[name] = inspect.cleandoc(doc)
    return docs


def _type_of(form: Any, cls: Any) -> Any:
    """Returns the type of a field in JSON."""
    kind: Any = _TYPES.get(type(form))
    match form:
        case forms.Scalar():
            kind = _TYPES.get(form.kind, form.kind)
        case forms.Numbers():
            kind = list[form.kind]
        case forms.Word(words=words):
            kind = TypeAliasType(words.__name__, Literal[tuple(words)])  # type: ignore[misc]
        case forms.Struct():
            part_class: Any = form.part_class
            # The model of a class in itself is not known yet.
            kind = part_class.__name__
            if part_class is not cls:
                kind = model_of(part_class)
            if form.is_list:
                kind = list[kind]
        case forms.Ids(axis=Axis.EXAMPLE):
            kind = Id
        case forms.Columns(axis=Axis.ENTRY):
            kind = CandidateFeatures
        case forms.Lists() if cls is Source:
            kind = list[Id | list[Id]]
    return kind


_TYPES: Mapping[type[Any], Any] = {
    np.int64: Integer,
    forms.AttributeLists: AttributeColumns,
    forms.Columns: Features,
    forms.Counts: Crowding,
    forms.Ids: list[Id],
    forms.IdsOrNull: list[Id] | None,
    forms.Lists: list[Id],
    forms.MissingIds: list[Id],
    forms.Names: list[str],
    forms.Number: Bound,
    forms.NumbersByName: Heads,
    forms.OneVector: list[float],
    forms.Tokens: list[Id | bool],
    forms.Values: list[Id],
    forms.Vectors: list[list[float]],
    change_forms.Attributes: AttributeValues,
    change_forms.Features: Features,
    change_forms.ItemIds: Id,
    change_forms.Position: Integer,
    change_forms.Positions: Integer,
    change_forms.Times: float | None,
    change_forms.Vectors: Vectors,
}
