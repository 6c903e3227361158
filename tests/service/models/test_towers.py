"""Plans: the parts, features and inputs that given outputs of a tower need."""

from __future__ import annotations

from pathlib import Path

from tests.service.models.driven import Write
from tests.service.models.test_loader import loader


def test_plan_of_an_output_runs_only_the_parts_it_needs(write: Write, root: Path) -> None:
    write(parts=True)
    version = loader(root).load("movies", 1)
    tower = version.towers["ranking"]
    for output in (one.name for one in tower.entry.outputs):
        plan = tower.plan(frozenset([output]))
        made = {one.name for part in plan.parts for one in part.entry.outputs}
        taken = {one.tensor for part in plan.parts for one in part.entry.inputs if one.tensor}
        assert output in made
        assert taken <= made
        assert made <= taken | {output}, "no part runs for nothing"
        features = {source for part in plan.parts for one in part.entry.inputs for source in one.sources}
        assert features == {*plan.context, *plan.candidate}
        assert plan is tower.plan(frozenset([output]))
    plan = tower.plan(frozenset(one.name for one in tower.entry.outputs))
    assert sorted((*plan.context, *plan.candidate)) == sorted(tower.features)
    assert {name for names in plan.inputs.values() for name in names} == set(tower.inputs)
    assert set(tower.by_role["context"]) == set(plan.inputs["context"])
    assert tower.result_plan.outputs == {tower.entry.result}
    version.close()
