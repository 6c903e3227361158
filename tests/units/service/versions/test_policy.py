"""Which versions are loaded and which is current, for every desired state and whatever exists."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from service.config import ServiceSettings
from service.versions.desired_state import DesiredModel, RolledBack
from service.versions.policy import Arrangement, arrange, rank_versions

SETTINGS = ServiceSettings(root=Path.cwd())


VERSIONS = st.sets(st.integers(1, 6))
DESIRED = st.builds(
    DesiredModel,
    stopped=st.booleans(),
    pinned=VERSIONS.map(tuple),
    rolled_back=st.none() | st.builds(RolledBack, to=st.integers(1, 6), above=st.integers(1, 6)),
    loaded=VERSIONS.map(tuple),
    unloaded=VERSIONS.map(tuple),
    labels=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 6)),
)


@given(
    st.lists(DESIRED, min_size=1, max_size=6),
    VERSIONS,
    st.lists(VERSIONS, min_size=6, max_size=6),
    st.integers(1, 3),
    st.booleans(),
)
def test_arrangement_any_desired_state_uses_loaded_versions_and_keeps_no_more_than_needed(
    states: list[DesiredModel],
    root_versions: set[int],
    loads: list[set[int]],
    latest: int,
    keep: bool,
) -> None:
    settings = SETTINGS.model_copy(update={"latest_versions": latest, "keep_previous": keep})
    before = Arrangement(None)
    loaded = set[int]()
    for wanted, arrived in zip(states, loads, strict=False):
        loaded |= arrived & root_versions
        served = before.current is not None
        before = arrange(wanted, settings, root_versions, loaded, (), before)
        assert {*before.loaded, before.current, before.previous} - {None} <= loaded
        assert before.current is None or before.current in before.loaded
        assert before.previous not in before.loaded
        assert wanted.labels.keys() == before.labels.keys() or wanted.stopped
        if wanted.stopped:
            assert before == Arrangement(None)
        elif best := [
            version for version in rank_versions(wanted, root_versions) if version in loaded
        ]:
            assert before.current == best[0]
        elif served and set(rank_versions(wanted, root_versions)) - set(wanted.unloaded):
            assert before.current is not None, (
                "another version will come, until then the old one stays"
            )
        loaded = {*before.loaded, *(() if before.previous is None else (before.previous,))}
