"""Models that cannot be served as they were trained, because their results depend on chance, on the
other examples of a batch or on numbers that examples lack: what each export says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible, VerificationFailed
from tests.units.export.movies_job import changed, export, write_project
from tests.units.export.traced_models import MODELS, one_table_recipe, save_checkpoint

AGE: dict[str, Any] = {"age": {"dtype": "float32"}}
CODE = (MODELS / "one_table.py").read_text()


def line_of(text: str) -> str:
    return f"one_table.py:{CODE[: CODE.index(text)].count(chr(10)) + 1}"


COUPLED = line_of("self.couple(self.look")
REJECTED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # the inputs of the model, and the words of its rejection
    "build_coupled_to_earlier": ({}, ("another order", COUPLED, "Cumsum")),
    "build_coupled_to_all": ({}, ("another order", line_of("tf.reduce_mean(vector)"), "Mean")),
    "build_random": ({}, ("called again", "random")),
    "build_root_of_negative": (AGE, ("nan", "verify.examples")),
    "one_at_a_time": (AGE, ("one example at a time", "squeeze")),
}


def project_of(directory: Path, function: str, inputs: dict[str, Any], **keys: Any) -> Path:
    """Saves the model's checkpoint; returns the recipe of its project."""
    job = one_table_recipe(function, **inputs)
    prefix = save_checkpoint(job, directory)
    page = job.model_dump(mode="json", exclude_unset=True)
    page = changed(page, "checkpoint.path", str(prefix))
    return write_project(directory / "project", page | keys)


@pytest.mark.parametrize("function", REJECTED)
def test_model_that_contradicts_itself_is_rejected_with_the_line_of_its_code(
    function: str, tmp_path: Path
) -> None:
    inputs, words = REJECTED[function]
    with pytest.raises((NotConvertible, VerificationFailed)) as problem:
        export(project_of(tmp_path, function, inputs))
    assert all(expected in str(problem.value) for expected in words), str(problem.value)


def test_model_of_which_only_positive_numbers_have_roots_is_compared_on_these(
    tmp_path: Path,
) -> None:
    project = project_of(tmp_path, "build_root_of_positive", AGE)
    assert export(project).manifest.verification.examples == 256


def test_model_in_half_precision_names_the_policy_and_takes_a_limit(tmp_path: Path) -> None:
    project = project_of(tmp_path, "build_half", {})
    # CPUs without instructions for bfloat16 round in other places than TensorFlow's kernels.
    rejection = ""
    try:
        (form, *_) = export(project).manifest.towers["tower"].forms
    except VerificationFailed as problem:
        rejection = str(problem)
    if rejection:
        for words in ("bfloat16", "policy 'float32'", "towers.tower.max_abs_error.f32"):
            assert words in rejection
    else:
        assert max(form.max_abs_error.values()) < 1e-5
    tower = {"role": "query", "max_abs_error": {"f32": 0.1}}
    limited = project_of(tmp_path / "limited", "build_half", {}, towers={"tower": tower})
    (form, *_) = export(limited).manifest.towers["tower"].forms
    assert max(form.max_abs_error.values()) < 0.1


def test_examples_of_which_the_model_gives_nan_are_named_by_their_row(tmp_path: Path) -> None:
    verify = {"examples": "examples.jsonl"}
    project = project_of(tmp_path, "build_root_of_positive", AGE, verify=verify)
    ages = np.array([4.0, -1.0])
    lines = [f'{{"item": {n}, "age": {age}}}\n' for n, age in enumerate(ages)]
    project.with_name("examples.jsonl").write_text("".join(lines))
    with pytest.raises(VerificationFailed, match=r"example 1 .*nan.*verify.examples"):
        export(project)
