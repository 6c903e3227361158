"""Reads pickles of known content without the code that they name.

A pickle names classes and functions that loading it calls, so loading one can run anything. Here
each name stands for something harmless that was chosen beforehand, and any other name is an error.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from export.checkpoint.formats.coding import Malformed

_TUPLE_PARTS_MAX = 1_000_000
"""The maximum number of parts of a tuple, its parts' parts included. Names and shapes of tensors
have a few.
"""


class Record:
    """Takes the place of an object of a class that `record_class` names.

    Its attributes are those of the object. Of an object whose class pickles something else, that is
    the attribute `state`.
    """

    KNOWN: ClassVar[frozenset[str]] = frozenset()
    """Names of the attributes that an object of the class may have."""

    def __setstate__(self, state: Any) -> None:
        attributes = state
        if not isinstance(state, dict):
            attributes = {"state": state}
        unknown = sorted(str(name) for name in attributes if name not in self.KNOWN)
        if unknown:
            raise Malformed(
                f"its {type(self).__name__} has {unknown[0]!r}, which is not understood and may "
                "change what the rest means"
            )
        self.__dict__.update(attributes)


def record_class(name: str, attributes: Iterable[str]) -> type[Record]:
    """Returns what takes the place of a class.

    Args:
      name: The name of the class, for messages.
      attributes: Names of the attributes that its objects may have; any other is an error.
    """
    return type(name, (Record,), {"KNOWN": frozenset(attributes)})


def load_restricted(
    data: bytes,
    substitute: Callable[[str, str], Any],
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Loads a pickle.

    Args:
      data: The pickle.
      substitute: Returns what takes the place of a name, by the module and the name; None if the
        name is not allowed.
      persistent: Returns the object of a persistent id; None if the pickle may have no such ids.

    Raises:
      Malformed: The pickle is damaged, names something else, or would keep the reader busy without
        end.
    """
    reader = _Unpickler(io.BytesIO(data), substitute, persistent)
    try:
        # Before loading, which would already hash each part of a tuple that is a key.
        _check_tuples(data)
        return reader.load()
    except Malformed:
        raise
    # A damaged pickle can raise anything: its instructions find wrong stacks, types or lengths, or
    # recurse.
    except Exception as problem:
        raise Malformed(f"{type(problem).__name__}: {problem}") from problem


def _check_tuples(data: bytes) -> None:
    """Checks that no tuple of a pickle has more than _TUPLE_PARTS_MAX parts, those of its parts
    included. Parts may be shared: 300 bytes can hold 10^12 of them, which a dictionary hashes one
    by one if the tuple is its key.

    Raises:
      Malformed: A tuple has more parts.
    """
    # The pickle machine without its objects: of each object on the stack, the number of its parts,
    # in a list of its own. No instruction is executed.
    stack: list[list[int]] = []
    marks: list[int] = []
    memo: dict[int, list[int]] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name in {"PUT", "BINPUT", "LONG_BINPUT"}:
            memo[int(argument or 0)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            stack.append(memo[int(argument or 0)])
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            start = _first_operand(opcode, len(stack), marks)
            parts = 1 + sum(part for (part,) in stack[start:])
            del stack[start:]
            if name.startswith("TUPLE") and parts > _TUPLE_PARTS_MAX:
                raise Malformed(f"one of its tuples has more than {_TUPLE_PARTS_MAX:,} parts")
            if opcode.stack_after:
                stack.append([parts])


def _first_operand(opcode: Any, size: int, marks: list[int]) -> int:
    """Returns the position on the stack of the first operand of an instruction. Removes the last
    mark if the instruction takes the operands from there on.
    """
    stack_before: list[Any] = opcode.stack_before
    if pickletools.markobject not in stack_before:
        return size - len(stack_before)
    return marks.pop() - stack_before.index(pickletools.markobject)


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        substitute: Callable[[str, str], Any],
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(file)
        self._substitute = substitute
        self._persistent = persistent

    def find_class(self, module: str, name: str) -> Any:
        """Returns what takes the place of a name."""
        replacement = self._substitute(module, name)
        if replacement is None:
            raise Malformed(f"it names {module}.{name}, which is not read")
        return replacement

    def persistent_load(self, pid: Any) -> Any:
        """Returns the object of a persistent id."""
        if self._persistent is None:
            raise Malformed("it refers to objects outside")
        return self._persistent(pid)
