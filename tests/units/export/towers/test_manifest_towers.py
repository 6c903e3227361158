"""Limits, formulas and outputs of towers, and their entries in the manifest."""

from __future__ import annotations

from typing import Any

import pytest

from bundle.format import manifest
from bundle.format.manifest import EmbeddedFeature, TowerForm, TowerInput, TowerOutput
from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.front_end.specs import FeatureSpec, ModelSpec, TableFacts, TowerSpec
from export.recipe.schema import ExportJob
from export.towers.manifest_towers import (
    check_formulas,
    check_limits,
    check_rankings,
    describe_tower,
)
from tests.units.export.traced_models import recipe


def output(name: str, *sizes: int | None) -> TowerOutput:
    return TowerOutput(name=name, dtype="float32", shape=(None, *sizes))


def tower(*outputs: TowerOutput, role: Any = "ranking", half: str = "") -> TowerSpec:
    return TowerSpec(
        name="rank",
        role=role,
        call=Call("", ("user",)),
        paths={output.name: (output.name,) for output in outputs},
        inputs=(TowerInput(name="user", feature="user", dtype="float32", shape=(None, 4)),),
        outputs=outputs,
        result=outputs[0].name,
        half=half,
    )


def model_of(spec: TowerSpec) -> ModelSpec:
    user = EmbeddedFeature(kind="single", table="users", role="context")
    facts = {"users": TableFacts("users", "users", 9, 4)}
    return ModelSpec(facts, {"user": FeatureSpec("user", user)}, {"rank": spec})


def job_of(**part: Any) -> ExportJob:
    inputs = {"user": {"dtype": "int64"}}
    return recipe("model.py:build", inputs, {"rank": {"role": "ranking", **part}})


CLICK = output("click")
LIMITED = {"max_abs_error": {"f32": 0.1}}


@pytest.mark.parametrize(
    ("part", "half", "converted", "is_rejected"),
    [
        (LIMITED, "", (), True),
        (LIMITED, "", ("movies",), True),
        (LIMITED, "", ("users",), False),
        (LIMITED, "float16", (), False),
        ({}, "", (), False),
    ],
)
def test_limit_of_float32_is_for_half_precision_and_converted_rows(
    part: dict[str, Any], half: str, converted: tuple[str, ...], is_rejected: bool
) -> None:
    model = model_of(tower(CLICK, half=half))
    if not is_rejected:
        check_limits(job_of(**part), model, converted)
        return
    with pytest.raises(UsageError) as caught:
        check_limits(job_of(**part), model, converted)
    assert str(caught.value) == (
        "towers.rank.max_abs_error.f32: the tower computes in float32, to which the parity rule "
        "applies"
    )


@pytest.mark.parametrize("sizes", [(), (1,), (None,), (1, 1)])
def test_ranking_of_one_number_for_each_candidate_is_taken(sizes: tuple[int | None, ...]) -> None:
    check_rankings(model_of(tower(CLICK, output("like", *sizes))), job_of())


def test_ranking_of_several_numbers_is_rejected() -> None:
    with pytest.raises(NotConvertible) as caught:
        check_rankings(model_of(tower(CLICK, output("like", 2, 3))), job_of())
    message = "towers.rank: output 'like' is 6 numbers for each candidate, but a ranking takes one"
    assert str(caught.value).startswith(message)
    check_rankings(model_of(tower(output("vector", 2, 3), role="query")), job_of())


def checked_formula(formula: str | None, spec: TowerSpec) -> str:
    """Returns why a formula is rejected; "" if it is not."""
    try:
        check_formulas(job_of(formula=formula, role=spec.role), model_of(spec))
    except UsageError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize(
    ("formula", "spec", "reason"),
    [
        (None, tower(CLICK, role="query"), ""),
        ("click * 2", tower(CLICK), ""),
        ("click * 2", tower(CLICK, output("many", 4)), ""),
        (
            "click",
            tower(CLICK, role="query"),
            "towers.rank.formula: a query tower ranks nothing; leave it out",
        ),
        (
            "click * like",
            tower(CLICK, output("share")),
            "towers.rank.formula names 'like'; the tower has click, share",
        ),
        (
            "click * many",
            tower(CLICK, output("many", 4)),
            "towers.rank.formula: output 'many' is not one number for each candidate",
        ),
    ],
)
def test_formula_is_of_outputs_that_are_one_number(
    formula: str | None, spec: TowerSpec, reason: str
) -> None:
    assert checked_formula(formula, spec) == reason


def test_formula_that_is_none_is_rejected() -> None:
    assert checked_formula("click *", tower(CLICK)).startswith("towers.rank.formula: ")


def test_tower_is_described_with_its_forms_and_parts() -> None:
    form = TowerForm(kind="litert", precision="int8", path="towers/rank/int8", max_abs_error={})
    part = manifest.TowerPart(
        name="whole", per="candidate", inputs=(), outputs=(CLICK,), forms=(form,)
    )
    job = job_of(precisions=["int8"], serve="int8", formula="click", max_abs_error={"int8": 1})
    described = describe_tower(tower(CLICK), job, (form,), (part,))
    assert described == manifest.Tower(
        role="ranking",
        inputs=tower(CLICK).inputs,
        outputs=(CLICK,),
        result="click",
        forms=(form,),
        serve="int8",
        formula="click",
        parts=(part,),
    )


def test_precision_to_be_served_without_a_form_is_rejected() -> None:
    form = TowerForm(kind="saved_model", precision="f32", path="towers/rank/s", max_abs_error={})
    job = job_of(precisions=["f32", "int8"], serve="int8", max_abs_error={"int8": 1})
    with pytest.raises(NotConvertible) as caught:
        describe_tower(tower(CLICK), job, (form,))
    assert str(caught.value) == (
        "tower 'rank' is to be served in int8, and LiteRT cannot run it; set towers.rank.serve "
        "to 'f32'"
    )
