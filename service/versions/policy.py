"""Which versions of a model are loaded, and which is current. The functions depend on their
arguments alone, so that workers decide alike: equal facts give equal roles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from service.config import ServiceSettings
from service.versions.desired_state import DesiredModel


@dataclass(frozen=True)
class Arrangement:
    """The roles of a model's loaded versions.

    Attributes:
      current: The version that serves requests that name none; None: there is no such version.
      loaded: The versions that serve requests that name them, `current` among them.
      previous: The version that stays loaded beside them for a rollback.
      labels: Versions by label; a label stays where it was until its new version is loaded.
    """

    current: int | None
    loaded: frozenset[int] = frozenset()
    previous: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def rank_versions(desired: DesiredModel, existing: Iterable[int]) -> list[int]:
    """Returns the versions that may be current, the best first.

    Args:
      desired: The desired state of the model.
      existing: The versions under the root, and loaded ones that were removed from it.
    """
    if desired.stopped:
        return []
    allowed = sorted(set(existing) - set(desired.unloaded), reverse=True)
    if desired.pinned:
        return [version for version in allowed if version in desired.pinned]
    rollback = desired.rolled_back
    if rollback is None:
        return allowed

    # A version above all that existed at the rollback ends it. What lies between the version that
    # was left and the one that was chosen has not been tried, and stays out.
    newer = [version for version in allowed if version > rollback.above]
    return newer + [version for version in allowed if version <= rollback.to]


def choose_current(
    desired: DesiredModel, shared: Iterable[int], lacking: Collection[int]
) -> int | None:
    """Returns which of the versions that all workers have loaded is current; None: none of them may
    be.

    Args:
      desired: The desired state of the model.
      shared: The versions that all workers have loaded.
      lacking: The versions that a new worker cannot load.
    """
    return next(iter(_prefer_present(rank_versions(desired, shared), lacking)), None)


def _prefer_present(versions: list[int], lacking: Collection[int]) -> list[int]:
    """Returns the versions that no worker lacks; all of them if each is lacking somewhere."""
    return [version for version in versions if version not in lacking] or versions


def named_versions(desired: DesiredModel) -> list[int]:
    """Returns the versions that are loaded whatever is current: pinned, labelled, and loaded by an
    operator.
    """
    if desired.stopped:
        return []
    versions = {*desired.pinned, *desired.loaded, *desired.labels.values()}
    return sorted(versions - set(desired.unloaded), reverse=True)


def arrange(
    desired: DesiredModel,
    settings: ServiceSettings,
    root_versions: Collection[int],
    loaded: Collection[int],
    failed: Collection[int],
    before: Arrangement,
    shared: Collection[int] | None = None,
    lacking: Collection[int] = (),
) -> Arrangement:
    """Returns the roles of the loaded versions. The current version goes once another can replace
    it, or if none will. Versions become current, and labels move, once every worker has loaded
    their version: the workers of a service respond from the same one.

    Args:
      desired: The desired state of the model.
      settings: The settings: how many of the latest versions are loaded, and whether a previous one
        stays loaded.
      root_versions: The versions under the root.
      loaded: The loaded versions.
      failed: The versions that cannot be loaded.
      before: The arrangement until now.
      shared: The versions that all other workers have loaded; None: no other worker serves the
        model.
      lacking: The versions that another worker cannot load.
    """
    if desired.stopped:
        return Arrangement(None)
    allowed = set(loaded) - set(desired.unloaded)
    loaded_everywhere = allowed
    if shared is not None:
        loaded_everywhere = allowed & set(shared)
    ranking = rank_versions(desired, {*root_versions, *loaded})

    # If no version that may be current is loaded everywhere, the workers stay with the current one.
    # If that one is not loaded everywhere either, there is nothing to agree on, and this worker
    # serves the best version that it has.
    candidates = [version for version in ranking if version in loaded_everywhere]
    peers_have_current = shared is not None and before.current in set(loaded) & set(shared)
    if not candidates and not peers_have_current:
        candidates = [version for version in ranking if version in allowed]
    latest = _prefer_present(candidates, lacking)[: settings.latest_versions]

    current: int | None = None
    if latest:
        current = latest[0]
    elif before.current in allowed:
        current = before.current
    elif before.current in loaded and not set(ranking) <= set(failed):
        # An operator unloaded it, and one of the versions that may replace it is still to come.
        current = before.current
    labels = _labels(desired, before, allowed, loaded_everywhere)

    # Versions that the other workers have yet to load stay loaded here until they have.
    coming = [version for version in ranking if version in allowed and version not in lacking]
    coming = coming[: settings.latest_versions]
    served = {*latest, *coming, *named_versions(desired), *labels.values()} & allowed
    if current is not None:
        served.add(current)

    previous = None
    if settings.keep_previous:
        unserved = allowed - served
        previous = _previous(desired, before, current, unserved)
        if previous not in unserved or previous not in root_versions:
            previous = None
    return Arrangement(current, frozenset(served), previous, labels)


def _labels(
    desired: DesiredModel, before: Arrangement, allowed: set[int], loaded_everywhere: set[int]
) -> dict[str, int]:
    """Returns versions by label: a label moves once every worker has loaded its new version."""
    labels = dict(desired.labels)
    for label, version in desired.labels.items():
        earlier = before.labels.get(label, version)
        if version not in loaded_everywhere and earlier in allowed:
            labels[label] = earlier
    return labels


def _previous(
    desired: DesiredModel, before: Arrangement, current: int | None, unserved: set[int]
) -> int | None:
    """Returns the version that is wanted for a rollback; None: there is none.

    Args:
      desired: The desired state of the model.
      before: The arrangement until now.
      current: The current version from now on.
      unserved: The loaded versions without another role; the previous one is among them if it is
        loaded.
    """
    previous = before.current
    if current == before.current:
        previous = before.previous
    if desired.pinned or desired.rolled_back is not None:
        # To undo it needs no load, also in a worker that had not switched to the newest version.
        newer = [version for version in unserved if version > (current or 0)]
        previous = max(newer, default=previous)
    return previous
