"""Reads pickles of known content without the code that they name.

A pickle names classes and functions that loading it calls, so loading one can run anything. Here
each name stands for something harmless that was chosen beforehand, and any other name is an error.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from export.checkpoint.formats.coding import Malformed


class Record:
    """Takes the place of an object of a class that `record_class` names.

    Its attributes are those of the object. Of an object whose class pickles something else, that is
    the attribute `state`.
    """

    KNOWN: ClassVar[frozenset[str]] = frozenset()
    """Names of the attributes that an object of the class may have."""

    def __setstate__(self, state: Any) -> None:
        attributes = state if isinstance(state, dict) else {"state": state}
        unknown = sorted(str(name) for name in attributes if name not in self.KNOWN)
        if unknown:
            raise Malformed(
                f"its {type(self).__name__} has {unknown[0]!r}, which is not understood and may "
                "change what the rest means"
            )
        self.__dict__.update(attributes)


def record_class(name: str, known: Iterable[str]) -> type[Record]:
    """Returns what takes the place of a class.

    Args:
      name: The name of the class, for messages.
      known: Names of the attributes that its objects may have; any other is an error.
    """
    return type(name, (Record,), {"KNOWN": frozenset(known)})


def load_restricted(
    data: bytes,
    substitute: Callable[[str, str], Any],
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Loads a pickle.

    Args:
      data: The pickle.
      substitute: Returns what takes the place of a name, given its module and its name; None: the
        name is not allowed.
      persistent: Returns the object of a persistent id; None: there may be none.

    Raises:
      Malformed: It is damaged, or names something else.
    """
    reader = _Unpickler(io.BytesIO(data), substitute, persistent)
    try:
        return reader.load()
    except Malformed:
        raise
    # Whatever a damaged pickle does: wrong stacks, types, lengths, recursion.
    except Exception as problem:
        raise Malformed(f"{type(problem).__name__}: {problem}") from problem


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
        found = self._substitute(module, name)
        if found is None:
            raise Malformed(f"it names {module}.{name}, which is not read")
        return found

    def persistent_load(self, pid: Any) -> Any:
        """Returns the object of a persistent id."""
        if self._persistent is None:
            raise Malformed("it refers to objects outside")
        return self._persistent(pid)
