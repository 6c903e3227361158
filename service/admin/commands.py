"""The commands of operators: the arguments of each, and how it edits the desired state."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from bundle.errors import FeatureError
from bundle.tables.id_values import ids_of, known_kind
from service.codec import json
from service.config import ServiceSettings
from service.contract import columns
from service.contract.columns import flat_ids, shown
from service.errors import (
    FieldViolation,
    InvalidArgument,
    NotFound,
    NotReady,
    TooLarge,
    one_of,
)
from service.observability.logging import PRINCIPAL, fields, limited, logger
from service.versions import desired_state
from service.versions.desired_state import (
    DENIED_MAX,
    ID_CHARS_MAX,
    Desired,
    DesiredModel,
    LogLevel,
    Version,
    invalid,
)
from service.versions.policy import rank_versions

_LOG = logger(__name__)
# What operators do is logged at any level, since they set the level, too.
_LOG.setLevel(logging.INFO)
_PATH = re.compile("/v1/(?:models/(?P<model>[^/]+)/)?(?P<command>.+)")


@dataclass(frozen=True)
class ModelFacts:
    """The facts about a model that its commands depend on.

    Attributes:
      existing: The versions under the root, and the loaded ones.
      current: The current version of the worker whose current version is the newest.
      previous: The previous version that the same worker keeps loaded.
      latest_versions: The number of versions that are loaded without being named.
    """

    existing: frozenset[int] = frozenset()
    current: int | None = None
    previous: int | None = None
    latest_versions: int = 1

    def is_latest(self, desired: DesiredModel, version: int) -> bool:
        """Returns whether a version is loaded without being named."""
        return version in rank_versions(desired, self.existing)[: self.latest_versions]


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ServiceCommand(_Command):
    """A command for all of the service."""

    @abstractmethod
    def edit(self, desired: Desired) -> Desired:
        """Returns the desired state after the command."""


class ModelCommand(_Command):
    """A command for one model."""

    @abstractmethod
    def edit(self, desired: DesiredModel, facts: ModelFacts, /) -> DesiredModel:
        """Returns the desired state of the model after the command.

        Raises:
          ServiceError: The command contradicts the state.
        """


class Load(ModelCommand):
    """Load a version, or serve an unloaded model again."""

    version: Version | None = None

    def edit(self, desired: DesiredModel, facts: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        after = desired.changed(stopped=False, unloaded={*desired.unloaded} - {self.version})

        # One of the latest versions is loaded anyway. Named here, it would stay loaded when newer
        # ones have arrived.
        if self.version is None or facts.is_latest(after, self.version):
            return after
        return after.changed(loaded={*after.loaded, self.version})


class Unload(ModelCommand):
    """Unload a version, or all of a model."""

    version: Version | None = None

    def edit(self, desired: DesiredModel, facts: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        if self.version is None:
            return desired.changed(stopped=True)

        # Clients that name a label, or a model with this pin, would have no version left.
        labels = sorted(
            label for label, version in desired.labels.items() if version == self.version
        )
        if labels:
            message = f"version is {self.version}, which has labels {labels}; remove them first"
            violation = FieldViolation("version", str(self.version), "one without labels")
            raise InvalidArgument(message, violation)
        if desired.pinned == (self.version,):
            message = f"version is {self.version}, the only one that is pinned; unpin it first"
            violation = FieldViolation("version", str(self.version), "one that is not pinned")
            raise InvalidArgument(message, violation)

        # A version that would be loaded again by itself is recorded as unloaded. For any other one
        # it is enough that nothing names it any more.
        is_loaded_anyway = self.version in {facts.current, facts.previous} or facts.is_latest(
            desired, self.version
        )
        unloaded = {*desired.unloaded}
        if is_loaded_anyway:
            unloaded.add(self.version)
        return desired.changed(
            pinned={*desired.pinned} - {self.version},
            loaded={*desired.loaded} - {self.version},
            unloaded=unloaded,
        )


class Pin(ModelCommand):
    """Serve only these versions."""

    versions: Annotated[list[Version], Field(min_length=1, max_length=1000, fail_fast=True)]

    def edit(self, desired: DesiredModel, _: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        # To pin a version that was unloaded loads it again.
        unloaded = {*desired.unloaded} - {*self.versions}
        return desired.changed(
            stopped=False, pinned=self.versions, rolled_back=None, unloaded=unloaded
        )


class Unpin(ModelCommand):
    """Serve the newest version again, after a pin or a rollback."""

    def edit(self, desired: DesiredModel, _: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        return desired.changed(pinned=(), rolled_back=None)


class Label(ModelCommand):
    """Set a label on a version."""

    label: desired_state.Label
    version: Version

    def edit(self, desired: DesiredModel, _: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        labels = desired.labels | {self.label: self.version}
        return desired.changed(labels=labels, unloaded={*desired.unloaded} - {self.version})


class Unlabel(ModelCommand):
    """Remove a label."""

    label: desired_state.Label

    def edit(self, desired: DesiredModel, _: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        if self.label not in desired.labels:
            labels = ", ".join(map(repr, sorted(desired.labels))) or "none"
            message = f"label is {self.label!r}; the model has {labels}"
            violation = FieldViolation("label", repr(self.label), one_of(labels))
            raise InvalidArgument(message, violation)
        remaining_labels = dict(desired.labels)
        del remaining_labels[self.label]
        return desired.changed(labels=remaining_labels)


class Rollback(ModelCommand):
    """Return to the previous version, or to an older one, until one arrives that is newer than all
    known now.
    """

    version: Version | None = None

    def edit(self, desired: DesiredModel, facts: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        if facts.current is None:
            raise NotReady("the model has no current version to roll back from")
        older = {version for version in facts.existing if version < facts.current}
        older -= {*desired.unloaded}

        # The previous version is still loaded, so that it serves at once.
        target = self.version
        if target is None and facts.previous in older:
            target = facts.previous
        if target is None:
            target = max(older, default=None)
        if target is None:
            message = f"the model has no version before {facts.current} to roll back to"
            expected = "a model with a version before the current one"
            raise NotFound(message, FieldViolation("model", "no such version", expected))
        if target >= facts.current:
            expected = f"one before the current version {facts.current}"
            raise InvalidArgument.of_field("version", target, expected)

        # The rollback ends with a version above all that exist now: the next export is not lost,
        # and one in between (failed, or still loading) does not come back as the newest.
        rolled_back = {"to": target, "above": max(facts.existing)}
        unloaded = {*desired.unloaded} - {target}
        return desired.changed(stopped=False, pinned=(), rolled_back=rolled_back, unloaded=unloaded)


class _DenyList(ModelCommand):
    ids: Annotated[
        list[Annotated[Any, WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})]],
        Field(min_length=1, max_length=DENIED_MAX, fail_fast=True),
    ]

    @cached_property
    def _packed(self) -> NDArray[Any]:
        """The ids as any other request has them; raises InvalidArgument."""
        return flat_ids(self.ids, "ids")

    @property
    def texts(self) -> list[str]:
        """The ids as the desired state has them: as text, whatever the type of the model's ids."""
        return [*map(str, self._packed.tolist())]


class DenyAdd(_DenyList):
    """Withdraw candidates: retrieve and recommend return them no more, from no version."""

    def check(self, id_dtypes: Collection[str]) -> None:
        """Checks the ids by the rule of the model's corpora, of which any may have an id.

        Args:
          id_dtypes: The dtypes of the ids of these corpora; empty: they are not known.

        Raises:
          InvalidArgument: A value is no id of any corpus.
        """
        try:
            if len(id_dtypes) == 1:
                (id_dtype,) = id_dtypes
                ids_of(id_dtype, "ids", self._packed)
            else:
                known_kind("ids", self._packed)
        except FeatureError as problem:
            raise InvalidArgument.of_misfit("ids", problem) from problem
        for text in self.texts:
            if not 0 < len(text) <= ID_CHARS_MAX:
                expected = f"an id of 1 to {ID_CHARS_MAX} characters"
                raise InvalidArgument.of_field("ids", shown(text), expected, "holds")

    def edit(self, desired: DesiredModel, _: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        denied = {*desired.denied, *self.texts}
        if len(denied) > DENIED_MAX:
            message = (
                f"the deny list would have {len(denied)} ids; at most {DENIED_MAX} are accepted"
            )
            violation = FieldViolation("ids", f"{len(denied)} denied", f"at most {DENIED_MAX}")
            raise TooLarge(message, violation)
        return desired.changed(denied=denied)


class DenyRemove(_DenyList):
    """Return withdrawn candidates again."""

    def edit(self, desired: DesiredModel, _: ModelFacts) -> DesiredModel:
        """Returns the desired state after the command."""
        denied = {*desired.denied}
        not_denied = [text for text in self.texts if text not in denied]
        if not_denied:
            value = repr(not_denied[0][:80])
            message = f"{len(not_denied)} of {len(self.ids)} ids are not denied, such as {value}"
            raise InvalidArgument(message, FieldViolation("ids", value, "an id that is denied"))
        return desired.changed(denied=denied - {*self.texts})


class Drain(ServiceCommand):
    """Reject calls."""

    def edit(self, desired: Desired) -> Desired:
        """Returns the desired state after the command."""
        return desired.model_copy(update={"draining": True})


class Undrain(ServiceCommand):
    """Accept calls again."""

    def edit(self, desired: Desired) -> Desired:
        """Returns the desired state after the command."""
        return desired.model_copy(update={"draining": False})


class SetLogLevel(ServiceCommand):
    """Set the minimum severity that is logged; null: the setting's."""

    level: LogLevel | None

    def edit(self, desired: Desired) -> Desired:
        """Returns the desired state after the command."""
        return desired.model_copy(update={"log_level": self.level})


MODEL_COMMANDS: Mapping[str, type[ModelCommand]] = {
    "load": Load,
    "unload": Unload,
    "pin": Pin,
    "unpin": Unpin,
    "label": Label,
    "unlabel": Unlabel,
    "rollback": Rollback,
    "deny/add": DenyAdd,
    "deny/remove": DenyRemove,
}
SERVICE_COMMANDS: Mapping[str, type[ServiceCommand]] = {
    "drain": Drain,
    "undrain": Undrain,
    "log-level": SetLogLevel,
}
COMMANDS: Mapping[str, type[ModelCommand] | type[ServiceCommand]] = {
    **MODEL_COMMANDS,
    **SERVICE_COMMANDS,
}


def read_command(
    name: str, body: bytes, settings: ServiceSettings
) -> ModelCommand | ServiceCommand:
    """Returns the command that a body has the arguments of; empty: none.

    Raises:
      InvalidArgument: The body is not JSON, or the command has no such arguments.
      TooLarge: The body may hold more values than the limit.
    """
    command = COMMANDS[name]
    # Of many unknown names, the first one is an error, and not each.
    value = json.parse(body or b"{}", settings)
    arguments = columns.fields(value, tuple(command.model_fields), "body")
    try:
        return command.model_validate(arguments)
    except ValidationError as problem:
        raise invalid(command, problem) from None


def log_command(path: str, arguments: Mapping[str, Any] | None) -> None:
    """Logs a command that was applied, or a change. The line has the operator's name.

    Args:
      path: The path of the request.
      arguments: The arguments of the command, and what came of it; None: the path says it all, or
        the changes do.
    """
    names = _PATH.fullmatch(path)
    assert names is not None  # noqa: S101 - every route of the admin API has such a path
    extra = fields(command=names["command"], model=names["model"] or "", **(arguments or {}))
    # Candidates may be changed hundreds of times per second.
    if arguments is None:
        extra = limited(extra, path, PRINCIPAL.get())
    _LOG.info("command_applied", extra=extra)
