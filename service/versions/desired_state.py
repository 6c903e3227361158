"""What operators want of the service beyond what lies under the root: pins, labels, loads, deny
lists, a drain.

One frozen value, kept as one JSON file (`state_file.py`). Without it every model serves its newest
version.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from bundle.format.key_paths import key_path
from bundle.tables.id_values import int64_of
from service.errors import FieldViolation, InvalidArgument


def _integer_of(value: object) -> object:
    """Returns the integer that a decimal string is: JSON carries those beyond 2^53 so."""
    number = int64_of(value)
    if number is None:
        return value
    return number


LogLevel = Literal["debug", "info", "warning", "error"]
Version = Annotated[int, Field(ge=1, lt=2**63), BeforeValidator(_integer_of)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$"
_IN_WORDS = "letters, digits, '_', '.' and '-' were expected, and a letter or a digit first"
"""_NAME as errors say it."""
Label = Annotated[str, Field(pattern=_NAME, max_length=64)]
Name = Annotated[str, Field(pattern=_NAME, max_length=128)]
Versions = Annotated[
    tuple[Version, ...],
    Field(max_length=1000),
    AfterValidator(lambda versions: tuple(sorted(set(versions)))),
]
"""Distinct versions in ascending order, so that equal wishes are equal values: the file is written
only if something has changed.
"""
DENIED_MAX = 100_000
"""Maximum number of ids on the deny list of one model, as text: 5 and "5" are the same id."""

ID_CHARS_MAX = 256
"""Maximum length of an id on a deny list."""
Ids = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=ID_CHARS_MAX)], ...],
    Field(max_length=DENIED_MAX),
    AfterValidator(lambda ids: tuple(sorted(set(ids)))),
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
      stopped: Whether no version of the model is loaded.
      pinned: The versions that may be served, the newest of them as the current one; empty: the
        newest under the root.
      rolled_back: The rollback in effect; None: there is none.
      loaded: Versions that are loaded too, for requests that name them.
      unloaded: Versions that are never loaded.
      labels: Versions by label, which stay loaded as long as they have one.
      denied: Ids of candidates that no version returns from retrieve and recommend, whether or not
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
          InvalidArgument: A value is not allowed.
        """
        # `model_copy` would not check the limits. Not strict: callers pass sets and lists.
        try:
            return DesiredModel.model_validate({**self.model_dump(), **fields}, strict=False)
        except ValidationError as problem:
            raise invalid(DesiredModel, problem) from None


class Desired(_Strict):
    """What is wanted of the service.

    Attributes:
      schema_version: The version of the file's format.
      revision: A number that grows by one with every change.
      draining: Whether no calls are accepted; what is loaded stays.
      log_level: The log level that replaces the setting; None: the setting holds.
      models: What is wanted of each model by name; all others serve their newest version.
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
        models = {**self.models, model: desired}
        # A model of which nothing is wanted any more leaves the file.
        wanted = {name: models[name] for name in sorted(models) if models[name] != _NOTHING}
        return self.model_copy(update={"models": wanted})


_NOTHING = DesiredModel()


def invalid(model: type[BaseModel], problem: ValidationError) -> InvalidArgument:
    """Returns the error for the first thing that is wrong with what was sent as a model."""
    first = problem.errors()[0]
    path = _path_of(model, first)
    violation = FieldViolation(path, _shown(first), _expectation_of(first))
    return InvalidArgument(first_error(model, problem), violation)


def first_error(model: type[BaseModel], problem: ValidationError) -> str:
    """Describes the first thing that is wrong with a model: where, the value, and what was
    expected.
    """
    first = problem.errors()[0]
    return f"{_path_of(model, first)} is {_shown(first)}: {_expectation_of(first)}"


def _path_of(model: type[BaseModel], error: ErrorDetails) -> str:
    return str(key_path(model, error["loc"])) or "the content"


def _expectation_of(error: ErrorDetails) -> str:
    if error["type"] == "string_pattern_mismatch":
        return _IN_WORDS
    return error["msg"]


def _shown(error: ErrorDetails) -> str:
    return repr(str(error["input"])[:80])
