"""Which versions of a model are loaded, and which is current. Pure: desired state and what is
loaded in, roles out.
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
      current: serves requests that name no version; None: there is none.
      loaded: serve requests that name them, `current` among them.
      previous: kept beside them for a rollback.
      labels: versions by label; a label stays where it was until its new version is loaded.
    """

    current: int | None
    loaded: frozenset[int] = frozenset()
    previous: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def ranked(desired: DesiredModel, known: Iterable[int]) -> list[int]:
    """Returns the versions that may be current, the best first.

    Args:
      known: versions under the root, and loaded ones that were removed from it.
    """
    if desired.stopped:
        return []
    allowed = sorted(set(known) - set(desired.unloaded), reverse=True)
    if desired.pinned:
        return [version for version in allowed if version in desired.pinned]
    back = desired.rolled_back
    if back is None:
        return allowed
    newer = [version for version in allowed if version > back.above]
    return newer + [version for version in allowed if version <= back.to]


def chosen(desired: DesiredModel, shared: Iterable[int], lacking: Collection[int]) -> int | None:
    """Returns which of the versions that all workers have loaded is current; None: no one of them
    may be.

    Args:
      lacking: versions that a new worker cannot load.
    """
    return next(iter(_without(ranked(desired, shared), lacking)), None)


def _without(versions: list[int], lacking: Collection[int]) -> list[int]:
    """Returns the versions that no worker lacks; if there are none, all of them."""
    return [version for version in versions if version not in lacking] or versions


def named(desired: DesiredModel) -> list[int]:
    """Returns the versions that are loaded whatever is current: pinned, labelled, and loaded by an
    operator.
    """
    if desired.stopped:
        return []
    versions = {*desired.pinned, *desired.loaded, *desired.labels.values()}
    return sorted(versions - set(desired.unloaded), reverse=True)


def arrangement(
    desired: DesiredModel,
    settings: ServiceSettings,
    known: Collection[int],
    loaded: Collection[int],
    failed: Collection[int],
    before: Arrangement,
    shared: Collection[int] | None = None,
    lacking: Collection[int] = (),
) -> Arrangement:
    """Arranges what is loaded. The current version goes once another can replace it, or if none
    will. Versions become current, and labels move, once every worker has loaded their version: the
    workers of a service respond from the same one.

    Args:
      known: versions under the root.
      loaded: loaded versions.
      failed: versions that cannot be loaded.
      before: the arrangement until now.
      shared: versions that all other workers have loaded; None: no other worker serves the model.
      lacking: versions that another worker cannot load.
    """
    if desired.stopped:
        return Arrangement(None)
    allowed = set(loaded) - set(desired.unloaded)
    everywhere = allowed if shared is None else allowed & set(shared)
    order = ranked(desired, {*known, *loaded})
    candidates = [version for version in order if version in everywhere]
    others_stay = shared is not None and before.current in set(loaded) & set(shared)
    if not candidates and not others_stay:
        candidates = [version for version in order if version in allowed]
    good = _without(candidates, lacking)[: settings.latest_versions]
    coming = [version for version in order if version in allowed and version not in lacking]
    if good:
        current: int | None = good[0]
    else:
        stays = before.current in allowed or (
            before.current in loaded and not set(order) <= set(failed)
        )
        current = before.current if stays else None
    labels = {
        label: earlier
        if version not in everywhere and (earlier := before.labels.get(label, version)) in allowed
        else version
        for label, version in desired.labels.items()
    }
    coming = coming[: settings.latest_versions]
    kept = {*good, *coming, *named(desired), *labels.values()} & allowed
    if current is not None:
        kept.add(current)
    previous = before.previous if current == before.current else before.current
    if desired.pinned or desired.rolled_back is not None:
        # To undo it needs no load, also in a worker that had not switched to the newest version.
        newer = [version for version in allowed - kept if version > (current or 0)]
        previous = max(newer, default=previous)
    if (
        not settings.keep_previous
        or previous not in allowed
        or previous not in known
        or previous in kept
    ):
        previous = None
    return Arrangement(current, frozenset(kept), previous, labels)
