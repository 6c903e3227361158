"""What operators want of the service beyond what lies under the root: pins, labels, loads, deny
lists, a drain.

One frozen value, kept as one JSON file (`state_file.py`). Without it every model serves its newest
version.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from service.errors import FieldViolation, InvalidArgument

LogLevel = Literal["debug", "info", "warning", "error"]
Version = Annotated[int, Field(ge=1, lt=2**63)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$")]
Versions = Annotated[
    tuple[Version, ...],
    Field(max_length=1000),
    AfterValidator(lambda found: tuple(sorted(set(found)))),
]
DENIED_MAX = 100_000
"""Ids on the deny list of one model, as text: 5 and "5" are the same id."""

Id = Annotated[str, Field(min_length=1, max_length=256)]
Ids = Annotated[
    tuple[Id, ...],
    Field(max_length=DENIED_MAX),
    AfterValidator(lambda found: tuple(sorted(set(found)))),
]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RolledBack(_Strict):
    """Version `to` or an older one is current until one newer than `above`, the newest at the
    rollback, arrives.
    """

    to: Version
    above: Version


class DesiredModel(_Strict):
    """What is wanted of one model.

    Attributes:
      stopped: no version of it is loaded.
      pinned: only these are served, the newest of them as the current one; empty: the newest under
        the root.
      loaded: also loaded, for requests that name them.
      unloaded: never loaded.
      labels: names of versions, which stay loaded as long as they have one.
      denied: ids of candidates that no version returns from retrieve and recommend, whether or not
        it has them.
    """

    stopped: bool = False
    pinned: Versions = ()
    rolled_back: RolledBack | None = None
    loaded: Versions = ()
    unloaded: Versions = ()
    labels: Annotated[dict[Label, Version], Field(max_length=1000)] = {}
    denied: Ids = ()

    def changed(self, **fields: object) -> DesiredModel:
        """Returns it with other values of some fields.

        Raises:
          InvalidArgument: a value is not allowed.
        """
        try:
            return DesiredModel.model_validate({**self.model_dump(), **fields}, strict=False)
        except ValidationError as problem:
            raise invalid(problem) from None


class Desired(_Strict):
    """What is wanted of the service.

    Attributes:
      revision: grows by one with every change.
      draining: no calls are accepted; what is loaded stays.
      log_level: instead of the setting.
    """

    schema_version: Literal[1] = 1
    revision: Annotated[int, Field(ge=0)] = 0
    draining: bool = False
    log_level: LogLevel | None = None
    models: Annotated[dict[Name, DesiredModel], Field(max_length=10_000)] = {}

    def of(self, model: str) -> DesiredModel:
        """Returns what is wanted of a model."""
        return self.models.get(model, _NOTHING)

    def with_model(self, model: str, desired: DesiredModel) -> Desired:
        """Returns it with one model's entry replaced."""
        models = sorted({**self.models, model: desired}.items())
        return self.model_copy(
            update={"models": {name: each for name, each in models if each != _NOTHING}}
        )


_NOTHING = DesiredModel()


def invalid(problem: ValidationError) -> InvalidArgument:
    """Returns the error for the first thing that is wrong with what was sent."""
    first = problem.errors()[0]
    violation = FieldViolation(_path_of(first), _shown(first), first["msg"])
    return InvalidArgument(first_error(problem), violation)


def first_error(problem: ValidationError) -> str:
    """Describes the first thing that is wrong: where, the value, and what was expected."""
    first = problem.errors()[0]
    return f"{_path_of(first)} is {_shown(first)}: {first['msg']}"


def _path_of(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"]) or "the content"


def _shown(error: ErrorDetails) -> str:
    return repr(str(error["input"])[:80])
