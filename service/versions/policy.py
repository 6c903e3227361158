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
) -> Arrangement:
    """Arranges what is loaded. The current version goes once another can replace it, or if none
    will.

    Args:
      known: versions under the root.
      loaded: loaded versions.
      failed: versions that cannot be loaded.
      before: the arrangement until now.
    """
    if desired.stopped:
        return Arrangement(None)
    allowed = set(loaded) - set(desired.unloaded)
    order = ranked(desired, {*known, *loaded})
    good = [version for version in order if version in allowed][: settings.latest_versions]
    if good:
        current: int | None = good[0]
    else:
        stays = before.current in allowed or (
            before.current in loaded and not set(order) <= set(failed)
        )
        current = before.current if stays else None
    labels = {
        label: earlier
        if version not in allowed and (earlier := before.labels.get(label, version)) in allowed
        else version
        for label, version in desired.labels.items()
    }
    kept = {*good, *named(desired), *labels.values()} & allowed
    if current is not None:
        kept.add(current)
    previous = before.previous if current == before.current else before.current
    if (
        not settings.keep_previous
        or previous not in allowed
        or previous not in known
        or previous in kept
    ):
        previous = None
    return Arrangement(current, frozenset(kept), previous, labels)
