"""What operators want of the service beyond what lies under the root: pins, labels, loads, unloads, a drain.

One frozen value, kept as one JSON file (`state_file.py`) and changed by the edits below. Without it every model serves
its newest version.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import InvalidArgument

LogLevel = Literal["debug", "info", "warning", "error"]
Version = Annotated[int, Field(ge=1, lt=2**63)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$")]
Versions = Annotated[tuple[Version, ...], Field(max_length=1000)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RolledBack(_Strict):
    """Version `to` or an older one is current until one newer than `above`, the newest at the rollback, arrives."""

    to: Version
    above: Version


class DesiredModel(_Strict):
    """What is wanted of one model.

    Attributes:
      stopped: no version of it is loaded.
      pinned: only these are served, the newest of them as the current one; empty: the newest under the root.
      loaded: also loaded, for requests that name them.
      unloaded: never loaded.
      labels: names of versions, which stay loaded as long as they have one.
    """

    stopped: bool = False
    pinned: Versions = ()
    rolled_back: RolledBack | None = None
    loaded: Versions = ()
    unloaded: Versions = ()
    labels: Annotated[dict[Label, Version], Field(max_length=1000)] = {}


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

    def drained(self, draining: bool) -> Desired:
        """Returns it with draining switched on or off."""
        return self.model_copy(update={"draining": draining})

    def logged(self, level: LogLevel | None) -> Desired:
        """Returns it with another log level; None: the setting's."""
        return self.model_copy(update={"log_level": level})

    def with_model(self, model: str, desired: DesiredModel) -> Desired:
        """Returns it with one model's entry replaced."""
        models = {**self.models, model: desired}
        if desired == _NOTHING:
            del models[model]
        return self.model_copy(update={"models": dict(sorted(models.items()))})


_NOTHING = DesiredModel()


def loaded(desired: DesiredModel, version: int | None, automatic: bool) -> DesiredModel:
    """Returns it with a version loaded, or (None) with the stopped model served again.

    Args:
      automatic: the version is loaded without being listed, once nothing forbids it.
    """
    if version is None:
        return _changed(desired, stopped=False)
    extra = {*desired.loaded} if automatic else {*desired.loaded, version}
    return _changed(desired, stopped=False, loaded=sorted(extra), unloaded=_without(desired.unloaded, version))


def unloaded(desired: DesiredModel, version: int | None, automatic: bool) -> DesiredModel:
    """Returns it with a version unloaded, or (None) with all of the model stopped.

    Args:
      automatic: the version is loaded unless it is forbidden.
    Raises:
      InvalidArgument: a label stands for it, or it is the only pinned one.
    """
    if version is None:
        return _changed(desired, stopped=True)
    if labels := sorted(label for label, labelled in desired.labels.items() if labelled == version):
        raise InvalidArgument(f"version is {version}, which has labels {labels}; remove them first")
    if desired.pinned == (version,):
        raise InvalidArgument(f"version is {version}, the only one that is pinned; unpin it first")
    return _changed(
        desired,
        pinned=_without(desired.pinned, version),
        loaded=_without(desired.loaded, version),
        unloaded=sorted({*desired.unloaded, version} if automatic else desired.unloaded),
    )


def pinned(desired: DesiredModel, versions: tuple[int, ...]) -> DesiredModel:
    """Returns it with only these versions served."""
    unloaded = _without(desired.unloaded, *versions)
    return _changed(desired, stopped=False, pinned=sorted(set(versions)), rolled_back=None, unloaded=unloaded)


def unpinned(desired: DesiredModel) -> DesiredModel:
    """Returns it with the newest version current again, after a pin or a rollback."""
    return _changed(desired, pinned=(), rolled_back=None)


def rolled_back(desired: DesiredModel, to: int, above: int) -> DesiredModel:
    """Returns it with an older version current until one newer than `above` arrives."""
    unloaded = _without(desired.unloaded, to)
    return _changed(desired, stopped=False, pinned=(), rolled_back={"to": to, "above": above}, unloaded=unloaded)


def labelled(desired: DesiredModel, label: str, version: int) -> DesiredModel:
    """Returns it with a label that stands for a version."""
    labels = dict(sorted({**desired.labels, label: version}.items()))
    return _changed(desired, labels=labels, unloaded=_without(desired.unloaded, version))


def unlabelled(desired: DesiredModel, label: str) -> DesiredModel:
    """Returns it without a label.

    Raises:
      InvalidArgument: there is no such label.
    """
    if label not in desired.labels:
        raise InvalidArgument(f"label is {label[:80]!r}; the model has {sorted(desired.labels) or 'none'}")
    return _changed(desired, labels={name: version for name, version in desired.labels.items() if name != label})


def _without(versions: tuple[int, ...], *removed: int) -> list[int]:
    return [version for version in versions if version not in removed]


def _changed(desired: DesiredModel, **fields: object) -> DesiredModel:
    try:
        return DesiredModel.model_validate({**desired.model_dump(), **fields}, strict=False)
    except ValidationError as problem:
        raise InvalidArgument(first_error(problem)) from None


def first_error(problem: ValidationError) -> str:
    """Describes the first thing that is wrong: where, the value, and what was expected."""
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the content"
    return f"{where} is {str(first['input'])[:80]!r}: {first['msg']}"
