"""Reads the pickles that PyTorch writes, without `pickle`.

A pickle is a program: it names classes and functions, and `pickle` calls them. Here `pickletools`
only splits it into instructions, which are carried out on plain values; what stands for a class or
a function was chosen beforehand, and any other name is an error.

No instruction copies, compares or walks a value that an earlier one made. So time and memory grow
with the bytes of the pickle alone, however often it refers to the same value.

Source: pickletools of Python 3.11.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, ClassVar, TypeAlias

from bundle.shown_values import shown
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.upstreams import PYTORCH, UnknownFields

_INSTRUCTIONS_MAX = 1 << 26
"""The maximum number of instructions: those of about 800,000 parts of tensors. Each may take some
hundred bytes of memory.
"""
_NAME_CHARACTERS_MAX = 200
"""The maximum number of characters of the name of a class or a function, with its module."""
Constructor: TypeAlias = Callable[[tuple[Any, ...]], Any]
"""Takes the arguments of a function that a pickle calls, and returns what stands for the result. It
must not copy or walk them: they may be shared.
"""


class Record:
    """Takes the place of an object of a class that `record_class` names.

    Its attributes are those of the object. Of an object whose class pickles something else, that is
    the attribute `state`.
    """

    KNOWN: ClassVar[Mapping[str, type | UnionType]] = {}
    """The attributes that an object of the class may have, and their types."""

    def set_state(self, state: Any) -> None:
        """Sets the attributes."""
        attributes = state
        if not isinstance(state, dict):
            attributes = {"state": state}
        kind = type(self).__name__
        unknown = [f"{kind}.{name}" for name in attributes if name not in self.KNOWN]
        if unknown:
            raise UnknownFields(PYTORCH, unknown)
        for name, value in attributes.items():
            if not isinstance(value, self.KNOWN[name]):
                raise Malformed(f"the field '{kind}.{name}' is of type {type(value).__name__}")
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        # Called for an attribute that the pickle does not set.
        raise AttributeError(f"the field '{type(self).__name__}.{name}' is missing")


def record_class(name: str, attributes: Mapping[str, type | UnionType]) -> type[Record]:
    """Returns what takes the place of a class of PyTorch.

    Args:
      name: The name of the class, for messages.
      attributes: The attributes that its objects may have, and their types; any other is an error.
    """
    return type(name, (Record,), {"KNOWN": attributes})


def read_pickle(
    data: bytes, meaning: Callable[[str, str], Any], *, refers_outside: bool = False
) -> Any:
    """Reads a pickle of protocol 2 to 5.

    Args:
      data: The pickle.
      meaning: Returns what a name stands for, by the module and the name: a class of records, a
        `Constructor`, or a text; None if the name is not allowed.
      refers_outside: Whether the pickle may refer to objects outside by ids, which then take their
        places, such as the storage of a tensor.

    Raises:
      Malformed: The pickle is damaged, names something else, or has an instruction that PyTorch
        does not write.
    """
    machine = _Machine(meaning, refers_outside)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count >= _INSTRUCTIONS_MAX:
                raise Malformed(f"it has more than {_INSTRUCTIONS_MAX:,} instructions")
            if opcode.name not in _ACTIONS:
                raise Malformed(
                    f"it has the instruction {opcode.name}, which PyTorch does not write"
                )
            _ACTIONS[opcode.name](machine, argument)
        return machine.stack.pop()
    # A damaged pickle has instructions that find too few values, or values of other types.
    except (LookupError, TypeError, ValueError) as problem:
        raise Malformed(f"{type(problem).__name__}: {problem}") from problem


class _Machine:
    """The state between two instructions, which are its methods.

    Attributes:
      stack: The values since the last mark.
    """

    def __init__(self, meaning: Callable[[str, str], Any], refers_outside: bool) -> None:
        self.stack: list[Any] = []
        self._meaning = meaning
        self._refers_outside = refers_outside
        self._stacks_below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        # One object for equal texts: as keys of a dict they would be compared at each use.
        self._texts: dict[str, str] = {}

    def ignore(self, _argument: Any) -> None:
        """PROTO, FRAME and STOP, behind which `genops` ends."""

    def push(self, argument: Any) -> None:
        self.stack.append(argument)

    def push_text(self, argument: str) -> None:
        self.stack.append(self._texts.setdefault(argument, argument))

    def push_true(self, _argument: Any) -> None:
        self.stack.append(True)

    def push_false(self, _argument: Any) -> None:
        self.stack.append(False)

    def push_dict(self, _argument: Any) -> None:
        self.stack.append({})

    def push_list(self, _argument: Any) -> None:
        self.stack.append([])

    def pop(self, _argument: Any) -> None:
        self.stack.pop()

    def get(self, argument: int) -> None:
        self.stack.append(self._memo[argument])

    def put(self, argument: int) -> None:
        self._memo[argument] = self.stack[-1]

    def memoize(self, _argument: Any) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def mark(self, _argument: Any) -> None:
        self._stacks_below_marks.append(self.stack)
        self.stack = []

    def pop_mark(self, _argument: Any) -> list[Any]:
        values = self.stack
        self.stack = self._stacks_below_marks.pop()
        return values

    def make_tuple(self, argument: Any) -> None:
        values = self.pop_mark(argument)
        self.stack.append(tuple(values))

    def make_empty_tuple(self, _argument: Any) -> None:
        self.stack.append(())

    def make_tuple_of_1(self, _argument: Any) -> None:
        self.stack.append(tuple(self._take(1)))

    def make_tuple_of_2(self, _argument: Any) -> None:
        self.stack.append(tuple(self._take(2)))

    def make_tuple_of_3(self, _argument: Any) -> None:
        self.stack.append(tuple(self._take(3)))

    def append(self, _argument: Any) -> None:
        self._extend(self._take(1))

    def append_all(self, argument: Any) -> None:
        self._extend(self.pop_mark(argument))

    def set_item(self, _argument: Any) -> None:
        self._set_items(self._take(2))

    def set_items(self, argument: Any) -> None:
        self._set_items(self.pop_mark(argument))

    def push_name(self, argument: str) -> None:
        self._push_name(*argument.split(" "))

    def push_name_of_stack(self, _argument: Any) -> None:
        self._push_name(*self._take(2))

    def create(self, _argument: Any) -> None:
        kind, arguments = self._take(2)
        if not (isinstance(kind, type) and issubclass(kind, Record)) or arguments != ():
            raise Malformed("it creates an object of what is no class of records")
        self.stack.append(kind())

    def call(self, _argument: Any) -> None:
        constructor, arguments = self._take(2)
        if isinstance(constructor, type) or not callable(constructor):
            raise Malformed(f"it calls {shown(constructor)}, which is no function")
        if not isinstance(arguments, tuple):
            raise Malformed("it calls a function with what is no tuple of arguments")
        self.stack.append(constructor(arguments))

    def set_state(self, _argument: Any) -> None:
        state = self.stack.pop()
        record = self.stack[-1]
        if not isinstance(record, Record):
            raise Malformed("it sets the attributes of what is no object")
        record.set_state(state)

    def refer_outside(self, _argument: Any) -> None:
        # The id stays on the stack, in the place of the object.
        if not self._refers_outside:
            raise Malformed("it refers to objects outside")

    def _take(self, count: int) -> list[Any]:
        """Removes and returns the last values of the stack."""
        first = len(self.stack) - count
        if first < 0:
            raise Malformed("an instruction finds too few values")
        values = self.stack[first:]
        del self.stack[first:]
        return values

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise Malformed("it appends to what is no list")
        target.extend(values)

    def _set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise Malformed("it sets items of what is no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # The hash of a tuple is that of its parts, their parts and so on: 300 bytes can name
            # 10^12 of them.
            if not isinstance(key, str | Record):
                kind = type(key).__name__
                raise Malformed(f"a dict has a {kind} as a key; a text was expected")
            target[key] = value

    def _push_name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Malformed("the name of a class is no text")
        # A value may be made of the name: pickles may repeat one by a few bytes.
        if len(module) + len(name) > _NAME_CHARACTERS_MAX:
            raise Malformed(f"it names {shown(name)}, which is not read")
        value = self._meaning(module, name)
        if value is None:
            raise Malformed(f"it names {module}.{name}, which is not read")
        self.stack.append(value)


_ACTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(["PROTO", "FRAME", "STOP"], _Machine.ignore),
    **dict.fromkeys(["NONE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"], _Machine.push),
    **dict.fromkeys(["SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"], _Machine.push_text),
    "NEWTRUE": _Machine.push_true,
    "NEWFALSE": _Machine.push_false,
    "EMPTY_DICT": _Machine.push_dict,
    "EMPTY_LIST": _Machine.push_list,
    "EMPTY_TUPLE": _Machine.make_empty_tuple,
    "TUPLE": _Machine.make_tuple,
    "TUPLE1": _Machine.make_tuple_of_1,
    "TUPLE2": _Machine.make_tuple_of_2,
    "TUPLE3": _Machine.make_tuple_of_3,
    **dict.fromkeys(["BINGET", "LONG_BINGET"], _Machine.get),
    **dict.fromkeys(["BINPUT", "LONG_BINPUT"], _Machine.put),
    "MEMOIZE": _Machine.memoize,
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.push_name,
    "STACK_GLOBAL": _Machine.push_name_of_stack,
    "NEWOBJ": _Machine.create,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.set_state,
    "BINPERSID": _Machine.refer_outside,
}
"""Instructions -> what carries them out. `genops` gives None as the argument of one that has none,
as NONE, which pushes it.
"""
