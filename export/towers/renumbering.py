"""Makes a SavedModel the same in every run: what TensorFlow draws by lot, or counts up over a process, is taken out.

TensorFlow numbers functions by all that the process traced before, which is less in a run that was resumed, and puts a
random number beside a fingerprint that no loader needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_NUMBERED = re.compile(r"^((?:.*PartitionedCall-|__(?:inference|forward|backward)_.*_))([0-9]+)$")
_CAPTURED = "_user_specified_name"
"""Attribute of an input; of a captured one it is the number of a tensor, which nothing refers to."""

_NAME_BYTES_MAX = 1024


def renumber(directory: Path) -> None:
    """Renumbers the functions of a SavedModel from one, in the order in which they were traced, and sorts them.

    Raises:
      OSError: the files cannot be written.
    """
    from tensorflow.core.protobuf import saved_model_pb2  # the caller has loaded TensorFlow

    path = directory / "saved_model.pb"
    page = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    numbers: set[int] = set()

    def note(name: str) -> str:
        numbers.update(int(found[2]) for found in _NUMBERED.finditer(name))
        return name

    _rename(page, note)
    places = {number: place for place, number in enumerate(sorted(numbers), start=1)}
    _rename(page, lambda name: _NUMBERED.sub(lambda found: f"{found[1]}{places[int(found[2])]}", name))
    for graph in page.meta_graphs:
        graph.graph_def.library.function.sort(key=lambda function: function.signature.name)
    path.write_bytes(page.SerializeToString(deterministic=True))
    (directory / "fingerprint.pb").unlink(missing_ok=True)


def _rename(message: Any, renamed: Callable[[str], str]) -> None:
    """Puts every name in a message, however deep, through a function."""
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            _rename_map(value, kind.fields_by_name, renamed)
        elif kind is not None:
            for part in _each(value):
                _rename(part, renamed)
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            names = [_renamed(each, renamed) for each in _each(value)]
            if isinstance(value, str | bytes):
                setattr(message, field.name, names[0])
            else:
                value[:] = names


def _rename_map(entries: Any, fields: Any, renamed: Callable[[str], str]) -> None:
    of_messages = fields["value"].message_type is not None
    if of_messages:
        for value in entries.values():
            _rename(value, renamed)
    if fields["key"].type != fields["key"].TYPE_STRING:
        return
    if _CAPTURED in entries and entries[_CAPTURED].s.isdigit():
        del entries[_CAPTURED]
    # In the order of their old numbers: no name is taken by one that is still to be renamed.
    for key in sorted(entries, key=lambda name: [int(found[2]) for found in _NUMBERED.finditer(name)]):
        name = renamed(key)
        if name != key:
            if of_messages:
                entries[name].CopyFrom(entries[key])
            else:
                entries[name] = entries[key]
            del entries[key]


def _renamed(value: Any, renamed: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return renamed(value)
    if len(value) > _NAME_BYTES_MAX or not value.isascii():  # the bytes of a tensor
        return value
    return renamed(value.decode()).encode()


def _each(value: Any) -> Iterator[Any]:
    if isinstance(value, str | bytes) or hasattr(value, "ListFields"):
        yield value
    else:
        yield from value
