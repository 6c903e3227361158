"""Which versions of a model are to be loaded, and which of them answers. Pure: what is wanted and what is there in, an
order out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from service.generations.desired import DesiredModel


@dataclass(frozen=True)
class Policy:
    """How many versions of a model are loaded where nobody asked for any.

    Attributes:
      latest: that many of the newest.
      keep_previous: whether the version that answered before stays loaded, so that going back takes no time.
    """

    latest: int = 1
    keep_previous: bool = True


@dataclass(frozen=True)
class Arrangement:
    """What a model is to have, of what is loaded.

    Attributes:
      current: answers requests that name no version; None: nothing does.
      loaded: answer requests that name them, `current` among them.
      previous: is kept beside them, to go back to.
      labels: versions by label; one that is not loaded yet leaves the label where it was.
    """

    current: int | None
    loaded: frozenset[int] = frozenset()
    previous: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def ranked(wanted: DesiredModel, known: Iterable[int]) -> list[int]:
    """Returns the versions that may answer, the best first.

    Args:
      known: versions in the root, and those that are loaded though they are gone from it.
    """
    if wanted.stopped:
        return []
    allowed = sorted(set(known) - set(wanted.unloaded), reverse=True)
    if wanted.pinned:
        return [version for version in allowed if version in wanted.pinned]
    back = wanted.rolled_back
    if back is None:
        return allowed
    return [version for version in allowed if version > back.above] + [
        version for version in allowed if version <= back.to
    ]


def named(wanted: DesiredModel) -> list[int]:
    """Returns the versions that are to be loaded whatever answers: pinned, labelled, and loaded by hand."""
    if wanted.stopped:
        return []
    versions = {*wanted.pinned, *wanted.loaded, *wanted.labels.values()}
    return sorted(versions - set(wanted.unloaded), reverse=True)


def arrangement(
    wanted: DesiredModel,
    policy: Policy,
    known: Collection[int],
    loaded: Collection[int],
    refused: Collection[int],
    before: Arrangement,
) -> Arrangement:
    """Arranges what is loaded. What answers goes when something else can, or when nothing else is to come.

    Args:
      known: versions in the root.
      loaded: versions that are loaded.
      refused: versions that cannot be loaded.
      before: how they are arranged now.
    """
    if wanted.stopped:
        return Arrangement(None)
    allowed = set(loaded) - set(wanted.unloaded)
    order = ranked(wanted, {*known, *loaded})
    good = [version for version in order if version in allowed][: policy.latest]
    if good:
        current: int | None = good[0]
    else:
        stays = before.current in allowed or (before.current in loaded and not set(order) <= set(refused))
        current = before.current if stays else None
    labels = {
        label: earlier
        if version not in allowed and (earlier := before.labels.get(label, version)) in allowed
        else version
        for label, version in wanted.labels.items()
    }
    kept = {*good, *named(wanted), *labels.values()} & allowed
    if current is not None:
        kept.add(current)
    previous = before.previous if current == before.current else before.current
    if not policy.keep_previous or previous not in allowed or previous not in known or previous in kept:
        previous = None
    return Arrangement(current, frozenset(kept), previous, labels)
