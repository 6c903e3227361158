"""Writes what follows from the messages that describe models: the client's records, and the
schemas of the OpenAPI document. Texts are the comments of the contract.

    python scripts/message_records.py DESCRIPTORS DIRECTORY   # for scripts/generate_stubs
"""

from __future__ import annotations

import pprint
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorSet,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from service.codec.message_values import NULL_WORDS

DESCRIPTIONS = ("ListModelsResponse", "GetModelResponse")
CHANGES = ("ChangeResponse", "GetChangesResponse")
ALWAYS = {"ChangeResponse": ["model", "version", "sequence", "changed"]}
"""Fields of the messages whose JSON leaves out other fields that are 0, false or empty."""
RENAMED = {
    "GetChangesResponse": "ChangesResponse",
    "ListModelsResponse": "ModelsResponse",
    "GetModelResponse": "ModelDetails",
    "LoadState": "State",
}
"""Names in the client and in the document that are not those of the contract."""
CLIENT_NAMES = {"ChangeResponse": "ChangeResult", "GetChangesResponse": "AppliedChanges"}
"""Names in the client alone."""
CLOSED = ("LoadState", "Call", "FeatureKind", "Role", "TowerRole")
"""Enumerations that the document has as such. Later versions may add to others: they are texts."""
MAPS = {
    "max_abs_error": "NumbersByOutput",
    "effects": "EffectsByOutput",
    "streams": "StreamOffsets",
}
"""Names of the schemas of maps, by field."""
SPECIAL: dict[str, tuple[str, Any]] = {
    "Timestamp": ("str", {"type": "string", "format": "date-time"}),
    "Unknown": ("str", {"type": "string"}),
    "Column": ("Any", {}),
    "Id": ("int | str", {"$ref": "#/components/schemas/Id"}),
    "Ids": ("Ids", {"items": {"$ref": "#/components/schemas/Id"}, "type": "array"}),
    "IdRule": ("Mapping[str, Any]", {"$ref": "#/components/schemas/IdRule"}),
}
"""Messages that are no objects of their fields: their types, and their schemas."""
PRESENT = ("Timestamp", "Unknown", "Column", "Ids")
"""Messages that are never null, or whose values may be anything."""
PAD = {"anyOf": [{"type": "number"}, {"$ref": "#/components/schemas/Id"}, {"type": "null"}]}
"""The schema of the field `pad`, whose values are scalars."""
SCALARS = {
    FieldDescriptorProto.TYPE_STRING: ("str", {"type": "string"}),
    FieldDescriptorProto.TYPE_BOOL: ("bool", {"type": "boolean"}),
    FieldDescriptorProto.TYPE_INT32: ("int", {"type": "integer"}),
    FieldDescriptorProto.TYPE_INT64: ("int", {"type": "integer", "format": "int64"}),
    FieldDescriptorProto.TYPE_DOUBLE: ("float", {"type": "number"}),
}
COLUMNS = 100


class Contract:
    """The messages and enumerations of the contract, with their comments."""

    def __init__(self, descriptors: FileDescriptorSet) -> None:
        (file,) = [file for file in descriptors.file if file.package.startswith("rowcast")]
        self._comments: dict[tuple[int, ...], str] = {}
        for location in file.source_code_info.location:
            comment = location.leading_comments or location.trailing_comments
            self._comments[tuple(location.path)] = " ".join(comment.split())
        # The numbers are those of the fields of FileDescriptorProto.
        self.messages = {
            message.name: (message, (4, number)) for number, message in enumerate(file.message_type)
        }
        self.enums = {enum.name: (enum, (5, number)) for number, enum in enumerate(file.enum_type)}

    def text(self, *path: int) -> str:
        """Returns the comment of a part of the contract as a sentence; "": it has none."""
        comment = self._comments.get(path, "").rstrip(".")
        if not comment:
            return ""
        return f"{comment[0].upper()}{comment[1:]}."

    def words(self, name: str) -> list[str]:
        """Returns the values of an enumeration, in lower case without their prefix; "" first, if
        the contract says what it means that none is set.
        """
        enum, path = self.enums[name]
        prefix = len(enum.value[0].name.removesuffix("UNSPECIFIED"))
        words = [value.name[prefix:].lower() for value in enum.value[1:]]
        if self.text(*path, 2, 0):
            words.insert(0, "")
        return words

    def reached(self, *roots: str) -> tuple[list[str], list[str]]:
        """Returns the messages and enumerations that some messages consist of, in the order of the
        contract.
        """
        messages: set[str] = set()
        enums: set[str] = set()
        pending = [*roots]
        while pending:
            name = pending.pop()
            if name not in self.messages or name in messages or name in SPECIAL:
                continue
            messages.add(name)
            message, _ = self.messages[name]
            for field in [*message.field, *(entry.field[1] for entry in message.nested_type)]:
                target = field.type_name.rpartition(".")[2]
                if field.type == FieldDescriptorProto.TYPE_ENUM:
                    enums.add(target)
                pending.append(target)
        messages.discard("ModelSpec")
        return (
            [name for name in self.messages if name in messages],
            [name for name in self.enums if name in enums],
        )

    def fields(self, name: str) -> Iterator[tuple[FieldDescriptorProto, str]]:
        """Yields the fields of a message with their texts; its ModelSpec is two fields."""
        message, path = self.messages[name]
        for number, field in enumerate(message.field):
            text = self.text(*path, 2, number)
            if field.type_name.endswith(".ModelSpec"):
                scalar = FieldDescriptorProto
                yield scalar(name="model", type=scalar.TYPE_STRING), ""
                # The versions of a model share their changes.
                if name != "GetChangesResponse":
                    yield scalar(name="version", type=scalar.TYPE_INT64), text
                continue
            yield field, text

    def map_entry(self, owner: str, field: FieldDescriptorProto) -> FieldDescriptorProto | None:
        """Returns the field of the values of a map; None: the field is no map."""
        message, _ = self.messages[owner]
        for entry in message.nested_type:
            if field.type_name.endswith(f".{entry.name}"):
                return entry.field[1]
        return None


def field_forms(contract: Contract, owner: str, field: FieldDescriptorProto) -> tuple[str, Any]:
    """Returns the type of a field in Python, and its schema."""
    target = field.type_name.rpartition(".")[2]
    if (entry := contract.map_entry(owner, field)) is not None:
        value_type, _ = field_forms(contract, owner, entry)
        return f"Mapping[str, {value_type.removesuffix(' | None')}]", reference(MAPS[field.name])

    if field.type == FieldDescriptorProto.TYPE_ENUM:
        python_type = target
        schema = {"type": "string"}
        if target in CLOSED:
            schema = reference(RENAMED.get(target, target))
    elif field.type == FieldDescriptorProto.TYPE_MESSAGE:
        name = RENAMED.get(target, target)
        python_type, schema = SPECIAL.get(target, (name, reference(name)))
    else:
        python_type, schema = SCALARS[field.type]
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"Sequence[{python_type}]", {"items": schema, "type": "array"}

    if field.name == "pad":
        return python_type, PAD
    is_optional = (
        field.proto3_optional or f"rowcast.embedding.v1.{owner}.{field.name}" in NULL_WORDS
    )
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        is_optional = target not in PRESENT
    if is_optional:
        return f"{python_type} | None", {"anyOf": [schema, {"type": "null"}]}
    return python_type, schema


def reference(name: str) -> dict[str, str]:
    """Returns a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def schemas(contract: Contract) -> str:
    """Returns the module of the schemas, by name as in the document."""
    messages, _ = contract.reached(*DESCRIPTIONS, *CHANGES)
    written: dict[str, Any] = {}
    for name in CLOSED:
        written[RENAMED.get(name, name)] = {"type": "string", "enum": contract.words(name)}
    _, path = contract.messages["IdRule"]
    written["IdRule"] = {
        "additionalProperties": True,
        "type": "object",
        "description": contract.text(*path),
    }
    for name in messages:
        properties = {}
        for field, text in contract.fields(name):
            _, schema = field_forms(contract, name, field)
            if (entry := contract.map_entry(name, field)) is not None:
                value_schema = reference(entry.type_name.rpartition(".")[2])
                if entry.type in SCALARS:
                    _, value_schema = SCALARS[entry.type]
                of_map = {"additionalProperties": value_schema, "type": "object"}
                written[MAPS[field.name]] = of_map
            described = dict(schema)
            if field.type == FieldDescriptorProto.TYPE_ENUM and "$ref" not in schema:
                words = contract.words(field.type_name.rpartition(".")[2])
                described["description"] = (
                    f"{text} One of: {', '.join(word or 'empty' for word in words)}.".strip()
                )
            elif text:
                described["description"] = text
            if "$ref" not in schema:
                described["title"] = field.name.replace("_", " ").title()
            properties[field.name] = described
        title = RENAMED.get(name, name)
        _, path = contract.messages[name]
        written[title] = {
            "properties": properties,
            "type": "object",
            "required": ALWAYS.get(name, list(properties)),
            "title": title,
            "description": contract.text(*path),
        }
    body = pprint.pformat(written, width=COLUMNS, sort_dicts=False)
    return (
        '"""The schemas of messages that describe models. Generated from proto/; see '
        'scripts/message_records.py.\n"""\n\n'
        f"SCHEMAS = {body}\n"
    )


HEADER = '''"""What a service reports about its models and changes, in the words of its JSON.
Generated from proto/; see scripts/message_records.py.

Enumerated values are words, such as "tree_ah"; "" stands where none applies. A newer service may
send words that are not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rowcast_client.results import Ids
'''


def records(contract: Contract) -> str:
    """Returns the module of the client's records."""
    messages, enums = contract.reached(*DESCRIPTIONS)
    lines = [HEADER]
    for name in enums:
        lines += literal(contract, name)
    messages.remove("ListModelsResponse")
    for name in (*messages, *CHANGES):
        lines += record(contract, name)
    entries = [f'    "{name}": {RENAMED.get(name, name)},' for name in messages]
    lines += ["", "", "RECORDS: Mapping[str, Callable[..., Any]] = {", *entries, "}"]
    lines.append('"""The record of each message, by the name of the message."""')
    return "\n".join(lines) + "\n"


def literal(contract: Contract, name: str) -> list[str]:
    """Returns the lines of the words of an enumeration."""
    words = [f'"{word}"' for word in contract.words(name)]
    line = f"{name} = Literal[{', '.join(words)}]"
    if len(line) <= COLUMNS:
        return [line]
    return [f"{name} = Literal[", *(f"    {word}," for word in words), "]"]


def record(contract: Contract, name: str) -> list[str]:
    """Returns the lines of the record of a message."""
    _, path = contract.messages[name]
    summary = textwrap.fill(f'    """{contract.text(*path)}', COLUMNS, subsequent_indent="    ")
    attributes = []
    fields = []
    for field, text in contract.fields(name):
        python_type, _ = field_forms(contract, name, field)
        fields.append(f"    {field.name}: {python_type}")
        if text:
            # The comments say what JSON has.
            line = re.sub("[Nn]ull:", "None:", f"      {field.name}: {text}")
            attributes.append(textwrap.fill(line, COLUMNS, subsequent_indent=" " * 8))
    if attributes:
        documentation = [summary, "", "    Attributes:", *attributes, '    """']
    elif len(summary) + 3 <= COLUMNS:
        documentation = [f'{summary}"""']
    else:
        documentation = [summary, '    """']
    title = CLIENT_NAMES.get(name, RENAMED.get(name, name))
    decorator = "@dataclass(frozen=True)"
    # Arrays are not compared as a whole.
    if name in CHANGES:
        decorator = "@dataclass(frozen=True, eq=False)"
    return ["", "", decorator, f"class {title}:", *documentation, "", *fields]


def main(descriptors: str, directory: str) -> None:
    """Writes the modules into a directory."""
    contract = Contract(FileDescriptorSet.FromString(Path(descriptors).read_bytes()))
    (Path(directory) / "model_details.py").write_text(records(contract))
    (Path(directory) / "message_schemas.py").write_text(schemas(contract))


if __name__ == "__main__":
    main(*sys.argv[1:])
