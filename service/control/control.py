"""What an operator may do to a service that runs: each changes the file of what is wanted, which every process follows.

What needs no load is in effect in every process that answers when the call returns. What has to be loaded is told as
`unmet` until it is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bundle import paths, staging
from service import logs
from service.engine.descriptions import ModelState
from service.errors import InvalidArgument, NotFound, NotReady
from service.generations import desired
from service.generations.desired import Desired, DesiredModel, LogLevel
from service.generations.policy import Policy, named, ranked
from service.generations.shelf import VersionState
from service.generations.state_file import StateFile
from service.generations.switch import Switch
from service.generations.watcher import Watcher
from service.memory import free_bytes, resident_bytes
from service.settings import ServiceSettings

_log = logs.logger(__name__)

_FOLLOWED_S_MAX, _LOOK_S = 2.0, 0.01
"""Other processes look at what is wanted ten times a second."""
_TOLD_MAX = 10
_LOADED = ("available", "kept")


class Control:
    """The operations of one service. Its methods run on the event loop; what touches a disk does not."""

    def __init__(
        self,
        settings: ServiceSettings,
        policy: Policy,
        switch: Switch,
        watcher: Watcher,
        state: StateFile,
        models: Callable[[], Awaitable[tuple[ModelState, ...]]],
        revision: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Acts on what this process serves.

        Args:
          models: tells the models and versions of all processes.
          revision: tells which revision of what is wanted all processes do; None: this is the only one.
        """
        self._settings, self._policy, self._switch = settings, policy, switch
        self._watcher, self._state, self._models, self._revision = watcher, state, models, revision

    async def status(self) -> dict[str, Any]:
        """Tells what is wanted, what there is, and what of it is still to come."""
        models = await self._models()
        return await asyncio.to_thread(self._status, models)

    async def load(self, model: str, version: int | None) -> None:
        """Has a version loaded, or (None) a model that was taken out served again.

        Raises:
          ServiceError: there is no such version, or the file cannot be written.
        """
        await self._edit("load", model, lambda: self._load(model, version), version=version)

    async def unload(self, model: str, version: int | None) -> None:
        """Takes a version out, or (None) all of a model.

        Raises:
          ServiceError: there is no such version, a label stands for it, or the file cannot be written.
        """
        await self._edit("unload", model, lambda: self._unload(model, version), version=version)

    async def pin(self, model: str, versions: tuple[int, ...]) -> None:
        """Has only these versions served, the newest of them unless a request names one.

        Raises:
          ServiceError: there is no such version, or the file cannot be written.
        """
        if not versions:
            raise InvalidArgument("versions is empty; at least one was expected")
        await self._edit("pin", model, lambda: self._pin(model, versions), versions=versions)

    async def unpin(self, model: str) -> None:
        """Has the newest version served again, also after a rollback.

        Raises:
          ServiceError: there is no such model, or the file cannot be written.
        """
        await self._edit("unpin", model, lambda: self._change(model, desired.unpinned))

    async def label(self, model: str, label: str, version: int) -> None:
        """Has a label stand for a version, which is loaded for it.

        Raises:
          ServiceError: there is no such version, it is no label, or the file cannot be written.
        """
        await self._edit("label", model, lambda: self._label(model, label, version), label=label, version=version)

    async def unlabel(self, model: str, label: str) -> None:
        """Takes a label off.

        Raises:
          ServiceError: there is no such label, or the file cannot be written.
        """
        await self._edit(
            "unlabel", model, lambda: self._change(model, lambda page: desired.unlabelled(page, label)), label=label
        )

    async def roll_back(self, model: str, version: int | None) -> None:
        """Has an older version answer until one comes that is newer than all there are now.

        Args:
          version: None: the one that answered before, or the next older one.
        Raises:
          ServiceError: there is nothing to go back to, or the file cannot be written.
        """
        await self._edit("rollback", model, lambda: self._roll_back(model, version), version=version)

    async def drain(self, draining: bool) -> None:
        """Has calls refused, or taken again.

        Raises:
          ServiceError: the file cannot be written.
        """
        await self._edit(
            "drain" if draining else "undrain",
            "",
            lambda: self._state.update(lambda page: page.drained(draining=draining)),
        )

    async def log_level(self, level: LogLevel | None) -> None:
        """Sets the least severity of what is logged; None: the setting's.

        Raises:
          ServiceError: the file cannot be written.
        """
        await self._edit("log_level", "", lambda: self._state.update(lambda page: page.logged(level)), level=level)

    async def _edit(self, what: str, model: str, edit: Callable[[], Desired], **told: Any) -> None:
        def act() -> int:
            revision = edit().revision
            self._watcher.follow()
            return revision

        revision = await asyncio.to_thread(act)
        end = time.monotonic() + _FOLLOWED_S_MAX
        while self._revision is not None and await self._revision() < revision and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
        named_ = {name: value for name, value in told.items() if value is not None}
        _log.info(
            "controlled",
            extra=logs.fields(what=what, revision=revision, **({"model": model} if model else {}), **named_),
        )

    def _load(self, model: str, version: int | None) -> Desired:
        known = self._known(model, version)

        def edit(page: DesiredModel) -> DesiredModel:
            free = page.model_copy(
                update={"stopped": False, "unloaded": tuple(one for one in page.unloaded if one != version)}
            )
            return desired.loaded(page, version, version in ranked(free, known)[: self._policy.latest])

        return self._change(model, edit)

    def _unload(self, model: str, version: int | None) -> Desired:
        known = self._known(model, version)
        arranged = self._switch.arranged(model)[1]

        def edit(page: DesiredModel) -> DesiredModel:
            by_itself = {arranged.current, arranged.previous, *ranked(page, known)[: self._policy.latest]}
            return desired.unloaded(page, version, version in by_itself)

        return self._change(model, edit)

    def _pin(self, model: str, versions: tuple[int, ...]) -> Desired:
        for version in versions:
            self._known(model, version)
        return self._change(model, lambda page: desired.pinned(page, versions))

    def _label(self, model: str, label: str, version: int) -> Desired:
        self._known(model, version)
        return self._change(model, lambda page: desired.labelled(page, label, version))

    def _roll_back(self, model: str, version: int | None) -> Desired:
        known = self._known(model, version)
        current, previous = self._switch.arranged(model)[1].current, self._switch.arranged(model)[1].previous
        if current is None:
            raise NotReady(f"model {model!r} has no version that answers, so there is none to go back from")

        def edit(page: DesiredModel) -> DesiredModel:
            older = [one for one in sorted(known, reverse=True) if one < current and one not in page.unloaded]
            to = version if version is not None else previous if previous in older else next(iter(older), None)
            if to is None:
                raise NotFound(f"model {model!r} has no version before {current} to go back to")
            if to >= current:
                raise InvalidArgument(f"version is {to}; one before {current}, which answers now, was expected")
            return desired.rolled_back(page, to, max(known))

        return self._change(model, edit)

    def _change(self, model: str, edit: Callable[[DesiredModel], DesiredModel]) -> Desired:
        self._known(model, None)
        return self._state.update(lambda page: page.with_model(model, edit(page.of(model))))

    def _known(self, model: str, version: int | None) -> set[int]:
        """Returns the versions of a model, in the root or loaded.

        Raises:
          NotFound: there is no such model, or not that version of it.
        """
        try:
            versions = set(staging.committed_versions(self._settings.root, model)) if paths.is_name(model) else set()
        except OSError:
            versions = set()
        versions |= self._switch.arranged(model)[0]
        if not versions and model not in self._switch.models():
            names = ", ".join(repr(name) for name in list(self._switch.models())[:_TOLD_MAX]) or "none"
            raise NotFound(f"no model {model[:128]!r} is in the root; there are {names}")
        if version is not None and version not in versions:
            there = ", ".join(map(str, sorted(versions, reverse=True)[:_TOLD_MAX])) or "none"
            raise NotFound(f"version {version} of model {model!r} is not in the root; there are {there}")
        return versions

    def _status(self, models: tuple[ModelState, ...]) -> dict[str, Any]:
        wanted = self._watcher.desired
        page = wanted or Desired()
        there = {
            name for name, versions in self._watcher.known.items() if versions and (self._settings.root / name).exists()
        }
        names = sorted({model.name for model in models} | page.models.keys() | there)
        states = {model.name: model.versions for model in models}
        return {
            "root": str(self._settings.root),
            "process": os.getpid(),
            "revision": page.revision,
            "state_file": str(self._state.path),
            "state_problem": self._watcher.state_problem,
            "draining": page.draining,
            "log_level": page.log_level or self._settings.log_level,
            "memory": {"resident_bytes": resident_bytes(), "free_bytes": free_bytes()},
            "models": [self._model(name, page.of(name), states.get(name, ())) for name in names],
        }

    def _model(self, name: str, wanted: DesiredModel, states: tuple[VersionState, ...]) -> dict[str, Any]:
        current = next((state.version for state in states if state.current), None)
        return {
            "name": name,
            "current": current,
            "wanted": wanted.model_dump(mode="json", exclude_defaults=True),
            "unmet": self._unmet(name, wanted, states),
            "versions": [vars(state) for state in states],
        }

    def _unmet(self, model: str, wanted: DesiredModel, states: tuple[VersionState, ...]) -> list[dict[str, Any]]:
        """What is wanted of a model and not so in every process."""
        by_version, missing = {state.version: state for state in states}, VersionState(0, "missing")
        loaded = {state.version for state in states if state.state in _LOADED}
        to_load = set(named(wanted))
        back = wanted.rolled_back
        if back is not None and not wanted.stopped and all(version <= back.above for version in loaded):
            to_load.add(back.to)
        order = ranked(wanted, loaded.union(self._watcher.known.get(model, ())))
        to_load.update([version for version in order if by_version.get(version, missing).state != "refused"][:1])
        to_unload = loaded if wanted.stopped else loaded & set(wanted.unloaded)
        current = self._switch.arranged(model)[1].current
        agreed = current is None or current not in by_version or by_version[current].current
        unmet = [(version, "loaded") for version in sorted(to_load - loaded)]
        unmet += [(version, "unloaded") for version in sorted(to_unload)]
        unmet += [] if agreed or current is None else [(current, "current")]
        return [
            {
                "version": version,
                "wanted": what,
                "state": by_version.get(version, missing).state,
                "problem": by_version.get(version, missing).problem,
            }
            for version, what in unmet
        ]
