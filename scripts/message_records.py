"""What follows from the messages that describe models: the client's records, which it writes, and
the schemas of the OpenAPI document. Texts are the comments of the contract.

    python scripts/message_records.py DESCRIPTORS DIRECTORY   # for scripts/generate_stubs
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from service.codec.message_values import NULL_WORDS, word_of

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
SCALARS: dict[int, tuple[str, Any]] = {
    FieldDescriptor.TYPE_STRING: ("str", {"type": "string"}),
    FieldDescriptor.TYPE_BOOL: ("bool", {"type": "boolean"}),
    FieldDescriptor.TYPE_INT32: ("int", {"type": "integer"}),
    FieldDescriptor.TYPE_INT64: ("int", {"$ref": "#/components/schemas/Integer"}),
    FieldDescriptor.TYPE_DOUBLE: ("float", {"type": "number"}),
}
COLUMNS = 100


class Contract:
    """The messages and enumerations of the contract, in its order, with its comments.

    Attributes:
      texts: The comment of each message, field and enumerated value as a sentence, by full name.
    """

    def __init__(self, descriptors: bytes) -> None:
        """Reads a FileDescriptorSet with imports and sources; the contract is the last file."""
        files = FileDescriptorSet.FromString(descriptors).file
        pool = DescriptorPool()
        for content in files:
            pool.Add(content)
        file = pool.FindFileByName(files[-1].name)
        self.messages: dict[str, Descriptor] = dict(file.message_types_by_name)
        self.enums: dict[str, EnumDescriptor] = dict(file.enum_types_by_name)

        # A path has the numbers of fields of FileDescriptorProto, each with a position.
        names: dict[tuple[int, ...], str] = {}
        for number, message in enumerate(files[-1].message_type):
            names[4, number] = message.name
            for position, field in enumerate(message.field):
                names[4, number, 2, position] = f"{message.name}.{field.name}"
        for number, enum in enumerate(files[-1].enum_type):
            names[5, number, 2, 0] = enum.value[0].name
        self.texts: dict[str, str] = {}
        for location in files[-1].source_code_info.location:
            comment = location.leading_comments or location.trailing_comments
            text = " ".join(comment.split()).rstrip(".")
            if text and tuple(location.path) in names:
                self.texts[names[tuple(location.path)]] = f"{text[0].upper()}{text[1:]}."

    def words(self, enum: EnumDescriptor) -> list[str]:
        """Returns the values of an enumeration; "" first, if the contract says what it means that
        none is set.
        """
        words = [word_of(enum, value.number) for value in enum.values]
        if enum.values[0].name not in self.texts:
            words.remove("")
        return words

    def reached(self, *roots: str) -> list[Descriptor]:
        """Returns the messages that some messages consist of."""
        reached: set[str] = set()
        pending = [self.messages[root] for root in roots]
        while pending:
            message = pending.pop()
            if message.name in reached or message.name in {*SPECIAL, "ModelSpec"}:
                continue
            reached.add(message.name)
            pending += [field.message_type for field in message.fields if field.message_type]
        return [message for name, message in self.messages.items() if name in reached]

    def fields(self, message: Descriptor) -> Iterator[tuple[str, FieldDescriptor, str]]:
        """Yields the fields of a message with their names and texts; its ModelSpec is two."""
        for field in message.fields:
            text = self.texts.get(f"{message.name}.{field.name}", "")
            if field.message_type is None or field.message_type.name != "ModelSpec":
                yield field.name, field, text
                continue
            parts = field.message_type.fields_by_name
            yield "model", parts["name"], ""
            # The versions of a model share their changes.
            if message.name != "GetChangesResponse":
                yield "version", parts["version"], text


def value_of_map(field: FieldDescriptor) -> FieldDescriptor | None:
    """Returns the field of the values of a map; None: the field is no map."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["value"]


def forms_of(field: FieldDescriptor) -> tuple[str, Any]:
    """Returns the type of a field in Python, and its schema."""
    if (value := value_of_map(field)) is not None:
        python_type, _ = form_of_one(value)
        return f"Mapping[str, {python_type}]", reference(MAPS[field.name])
    python_type, schema = form_of_one(field)
    if field.is_repeated:
        return f"Sequence[{python_type}]", {"items": schema, "type": "array"}
    if field.name == "pad":
        return python_type, PAD
    is_present = field.message_type is not None and field.message_type.name in PRESENT
    if field.full_name in NULL_WORDS or (field.has_presence and not is_present):
        return f"{python_type} | None", {"anyOf": [schema, {"type": "null"}]}
    return python_type, schema


def form_of_one(field: FieldDescriptor) -> tuple[str, Any]:
    """Returns the type and the schema of one value of a field."""
    if field.enum_type is not None:
        name = field.enum_type.name
        if name in CLOSED:
            return name, reference(RENAMED.get(name, name))
        return name, {"type": "string"}
    if field.message_type is not None:
        name = RENAMED.get(field.message_type.name, field.message_type.name)
        return SPECIAL.get(name, (name, reference(name)))
    return SCALARS[field.type]


def reference(name: str) -> dict[str, str]:
    """Returns a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def schemas(contract: Contract) -> dict[str, Any]:
    """Returns the schemas of messages that describe models, by name as in the document."""
    written: dict[str, Any] = {}
    for name in CLOSED:
        words = contract.words(contract.enums[name])
        written[RENAMED.get(name, name)] = {"type": "string", "enum": words}
    rule = {"additionalProperties": True, "type": "object"}
    written["IdRule"] = rule | {"description": contract.texts["IdRule"]}
    for message in contract.reached(*DESCRIPTIONS, *CHANGES):
        properties = {}
        for name, field, text in contract.fields(message):
            if (value := value_of_map(field)) is not None:
                _, value_schema = form_of_one(value)
                of_map = {"additionalProperties": value_schema, "type": "object"}
                written[MAPS[field.name]] = of_map
            _, schema = forms_of(field)
            described = dict(schema)
            description = text
            if field.enum_type is not None and "$ref" not in schema:
                words = [word or "empty" for word in contract.words(field.enum_type)]
                description = f"{text} One of: {', '.join(words)}.".strip()
            if description:
                described["description"] = description
            if "$ref" not in schema:
                described["title"] = name.replace("_", " ").title()
            properties[name] = described
        title = RENAMED.get(message.name, message.name)
        written[title] = {
            "properties": properties,
            "type": "object",
            "required": ALWAYS.get(message.name, list(properties)),
            "title": title,
            "description": contract.texts[message.name],
        }
    return written


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
    messages = contract.reached(*DESCRIPTIONS)
    fields = [field for message in messages for field in message.fields]
    enums = {field.enum_type.name for field in fields if field.enum_type is not None}
    lines = [HEADER]
    for name, enum in contract.enums.items():
        if name in enums:
            lines += literal(name, contract.words(enum))
    messages.remove(contract.messages["ListModelsResponse"])
    for message in (*messages, *[contract.messages[name] for name in CHANGES]):
        lines += record(contract, message)
    entries = [
        f'    "{message.name}": {RENAMED.get(message.name, message.name)},' for message in messages
    ]
    lines += ["", "", "RECORDS: Mapping[str, Callable[..., Any]] = {", *entries, "}"]
    lines.append('"""The record of each message, by the name of the message."""')
    return "\n".join(lines) + "\n"


def literal(name: str, words: list[str]) -> list[str]:
    """Returns the lines of the words of an enumeration."""
    quoted = [f'"{word}"' for word in words]
    line = f"{name} = Literal[{', '.join(quoted)}]"
    if len(line) <= COLUMNS:
        return [line]
    return [f"{name} = Literal[", *(f"    {word}," for word in quoted), "]"]


def record(contract: Contract, message: Descriptor) -> list[str]:
    """Returns the lines of the record of a message."""
    name = message.name
    text = f'    """{contract.texts[name]}'
    summary = textwrap.fill(text, COLUMNS, subsequent_indent="    ")
    attributes = []
    fields = []
    for field_name, field, text in contract.fields(message):
        python_type, _ = forms_of(field)
        fields.append(f"    {field_name}: {python_type}")
        if text:
            # The comments say what JSON has.
            line = re.sub("[Nn]ull:", "None:", f"      {field_name}: {text}")
            attributes.append(textwrap.fill(line, COLUMNS, subsequent_indent=" " * 8))
    documentation = [f'{summary}"""']
    if attributes:
        documentation = [summary, "", "    Attributes:", *attributes, '    """']
    title = CLIENT_NAMES.get(name, RENAMED.get(name, name))
    decorator = "@dataclass(frozen=True)"
    # Arrays are not compared as a whole.
    if name in CHANGES:
        decorator = "@dataclass(frozen=True, eq=False)"
    return ["", "", decorator, f"class {title}:", *documentation, "", *fields]


def main(descriptors: str, directory: str) -> None:
    """Writes the module into a directory."""
    contract = Contract(Path(descriptors).read_bytes())
    (Path(directory) / "model_details.py").write_text(records(contract))


if __name__ == "__main__":
    main(*sys.argv[1:])
