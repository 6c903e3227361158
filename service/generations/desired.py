"""What an operator wants of a service, beyond what lies in the root: pins, labels, versions in and out, a drain.

One frozen value, kept as one JSON file (`state_file.py`), changed by the edits below. Without it every model serves its
newest version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import InvalidArgument

LogLevel = Literal["debug", "info", "warning", "error"]
Version = Annotated[int, Field(ge=1, lt=2**63)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$")]
Versions = Annotated[tuple[Version, ...], Field(max_length=1000)]


class _Page(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RolledBack(_Page):
    """A version that answers until one comes that is newer than all that were there when it was gone back to."""

    to: Version
    above: Version


class DesiredModel(_Page):
    """What is wanted of one model."""

    stopped: bool = False
    """No version of it is loaded."""
    pinned: Versions = ()
    """Only these are served, the newest of them unless a request names one; empty: the newest that there is."""
    rolled_back: RolledBack | None = None
    loaded: Versions = ()
    """Also loaded, for requests that name them."""
    unloaded: Versions = ()
    """Never loaded."""
    labels: Annotated[dict[Label, Version], Field(max_length=1000)] = {}
    """Names for versions, which are loaded as long as they have one."""


class Desired(_Page):
    """What is wanted of a service."""

    schema_version: Literal[1] = 1
    revision: Annotated[int, Field(ge=0)] = 0
    """Grows by one with every change."""
    draining: bool = False
    """Calls are refused; what is loaded stays."""
    log_level: LogLevel | None = None
    """Instead of the setting."""
    models: Annotated[dict[Name, DesiredModel], Field(max_length=10_000)] = {}

    def of(self, model: str) -> DesiredModel:
        """Returns what is wanted of a model."""
        return self.models.get(model, _NOTHING)

    def drained(self, draining: bool) -> Desired:
        """Returns it with calls refused, or taken again."""
        return self.model_copy(update={"draining": draining})

    def logged(self, level: LogLevel | None) -> Desired:
        """Returns it with another least severity of what is logged; None: the setting's."""
        return self.model_copy(update={"log_level": level})

    def with_model(self, model: str, wanted: DesiredModel) -> Desired:
        """Returns it with another wish for one model."""
        others: Mapping[str, DesiredModel] = {name: page for name, page in self.models.items() if name != model}
        changed = others if wanted == _NOTHING else {**others, model: wanted}
        return self.model_copy(update={"models": dict(sorted(changed.items()))})


_NOTHING = DesiredModel()


def loaded(wanted: DesiredModel, version: int | None, automatic: bool) -> DesiredModel:
    """Returns it with a version loaded, or (None) with the model served again.

    Args:
      automatic: the version is loaded as soon as nothing forbids it.
    """
    if version is None:
        return _changed(wanted, stopped=False)
    extra = {*wanted.loaded} if automatic else {*wanted.loaded, version}
    return _changed(
        wanted, stopped=False, loaded=sorted(extra), unloaded=[one for one in wanted.unloaded if one != version]
    )


def unloaded(wanted: DesiredModel, version: int | None, automatic: bool) -> DesiredModel:
    """Returns it with a version taken out, or (None) with all of the model taken out.

    Args:
      automatic: the version is loaded unless it is forbidden.
    Raises:
      InvalidArgument: a label stands for it, or it is the only one that is pinned.
    """
    if version is None:
        return _changed(wanted, stopped=True)
    if labels := sorted(label for label, labelled in wanted.labels.items() if labelled == version):
        raise InvalidArgument(f"version is {version}, which labels {labels} stand for; take them off first")
    if wanted.pinned == (version,):
        raise InvalidArgument(f"version is {version}, the only one that is pinned; unpin it first")
    forbidden = {*wanted.unloaded, version} if automatic else {*wanted.unloaded}
    return _changed(
        wanted,
        pinned=[one for one in wanted.pinned if one != version],
        loaded=[one for one in wanted.loaded if one != version],
        unloaded=sorted(forbidden),
    )


def pinned(wanted: DesiredModel, versions: tuple[int, ...]) -> DesiredModel:
    """Returns it with only these versions served."""
    kept = [one for one in wanted.unloaded if one not in versions]
    return _changed(wanted, stopped=False, pinned=sorted(set(versions)), rolled_back=None, unloaded=kept)


def unpinned(wanted: DesiredModel) -> DesiredModel:
    """Returns it with the newest version served again, also after it was gone back from."""
    return _changed(wanted, pinned=(), rolled_back=None)


def rolled_back(wanted: DesiredModel, to: int, above: int) -> DesiredModel:
    """Returns it with an older version answering until one above `above` comes."""
    kept = [one for one in wanted.unloaded if one != to]
    return _changed(wanted, stopped=False, pinned=(), rolled_back={"to": to, "above": above}, unloaded=kept)


def labelled(wanted: DesiredModel, label: str, version: int) -> DesiredModel:
    """Returns it with a label that stands for a version."""
    kept = [one for one in wanted.unloaded if one != version]
    return _changed(wanted, labels=dict(sorted({**wanted.labels, label: version}.items())), unloaded=kept)


def unlabelled(wanted: DesiredModel, label: str) -> DesiredModel:
    """Returns it without a label.

    Raises:
      InvalidArgument: there is no such label.
    """
    if label not in wanted.labels:
        raise InvalidArgument(f"label is {label[:80]!r}; the model has {sorted(wanted.labels) or 'none'}")
    return _changed(wanted, labels={name: version for name, version in wanted.labels.items() if name != label})


def _changed(wanted: DesiredModel, **fields: object) -> DesiredModel:
    try:
        return DesiredModel.model_validate({**wanted.model_dump(), **fields}, strict=False)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(f"{where} is {str(first['input'])[:80]!r}: {first['msg']}") from None
