"""A recipe is rejected with one sentence that names the key, the value and what was expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from export.errors import UsageError
from export.recipe.schema import CorpusSection, VocabularyRule, name_of_call, read_recipe

RECIPE = """
model = "movielens"
[checkpoint]
path = "checkpoint"
[code]
factory = "model.py:build_model"
[output]
root = "bundles"
[inputs.user_id]
dtype = "int64"
[towers.query]
role = "query"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_recipe_with_only_the_required_keys_takes_every_default(tmp_path: Path) -> None:
    job = read_recipe(write(tmp_path, RECIPE))
    assert job.towers["query"].precisions == ("f32",)
    assert job.verify.count == 256
    assert job.inputs["user_id"].kind == "dense"


def test_recipe_of_the_docs_is_a_valid_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "port-your-model.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (example,) = (block for block in blocks if block.startswith('model = "movies"'))
    job = read_recipe(write(tmp_path, example))
    assert set(job.features) | {"user_id", "age"} == set(job.inputs)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("verfy = {}", "unknown key 'verfy'; did you mean 'verify'?"),
        (
            "towers.other = { role = 'query', rolle = 1 }",
            "unknown key 'towers.other.rolle'; did you mean 'role'?",
        ),
        (
            "zzz = 1",
            "unknown key 'zzz'; known here: checkpoint, code, contexts, corpora, features, "
            "indexes, inputs, lists, model, output, stages, tables, towers, verify, "
            "vocabularies, warm_up",
        ),
        (
            "verify.zzz = 1",
            "unknown key 'verify.zzz'; known here: count, examples, examples_format, expected, "
            "labels, rows, stated_layouts, trained_ids",
        ),
        (
            "verify.trained_ids.user_id = { files = 'f' }",
            "unknown key 'verify.trained_ids.user_id.files'; did you mean 'file'?",
        ),
        (
            "verify.trained_ids.user_id = { order = 'rank' }",
            "verify.trained_ids.user_id.order: Input should be 'any' or 'frequency' (got 'rank')",
        ),
        (
            "vocabularies.names = { file = 'f', zzz = 1 }",
            "unknown key 'vocabularies.names.zzz'; known here: dtype, file",
        ),
        # What is beside the key of a rule depends on its kind.
        (
            "features.user_id.ids = { kind = 'hash', zzz = 1 }",
            "unknown key 'features.user_id.ids.hash.zzz'",
        ),
        ("vocabularies.names = {}", "key 'vocabularies.names.file' is missing"),
        (
            "verify.count = 0",
            "verify.count: Input should be greater than 0 (got 0)",
        ),
        (
            "features.user_id.ids = { kind = 'vocabulary', vocabulary = 'v', oov_buckets = 1 }",
            "features.user_id.ids.vocabulary: 'oov_buckets' requires 'oov_first_row' (got "
            "{'kind': 'vocabulary', 'vocabulary': 'v', 'oov_buckets': 1})",
        ),
        (
            "inputs.seen = { dtype = 'int64', kind = 'ragged', pad = 0 }",
            "inputs.seen: 'pad' belongs to a dense input; the model itself defines what becomes "
            "of the lists of a ragged one (got {'dtype': 'int64', 'kind': 'ragged', 'pad': 0})",
        ),
        (
            "inputs.seen = { dtype = 'int64', keep = 'last' }",
            "inputs.seen: 'keep' belongs to an input of ids or numbers with one axis, such as "
            "shape = [20] (got {'dtype': 'int64', 'keep': 'last'})",
        ),
        (
            "inputs.seen = { dtype = 'int64', shape = [2], pad_side = 'start' }",
            "inputs.seen: 'pad_side' requires 'pad' (got {'dtype': 'int64', 'shape': [2], "
            "'pad_side': 'start'})",
        ),
        # A misspelled key is also missing.
        (
            "vocabularies.names = { fil = 'f' }",
            "unknown key 'vocabularies.names.fil'; did you mean 'file'?",
        ),
    ],
)
def test_first_mistake_of_a_recipe_is_told_with_its_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(UsageError) as rejection:
        read_recipe(write(tmp_path, f"{text}\n{RECIPE}"))
    assert str(rejection.value) == f"recipe {tmp_path / 'recipe.toml'}: {problem}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a = = 1", "cannot be read as TOML: "),
        (
            b"a = text",
            "cannot be read as TOML: Invalid value (at line 1, column 5); texts need quo",
        ),
        (b"\xff\xfe", "cannot be read: it is not UTF-8 text; a TOML file was expected"),
        (b"a = " + b"[" * 100_000, "cannot be read: it is nested too deeply"),
        (None, "does not exist"),
    ],
)
def test_file_that_is_no_recipe_is_told(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as rejection:
        read_recipe(path)
    assert str(rejection.value).startswith(f"recipe {path} {problem}")
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory$"):
        read_recipe(tmp_path)


def test_corpus_stores_what_requests_filter_by_among_its_attributes() -> None:
    part = CorpusSection(file="f", id="id", attributes=("a", "b"), filters=("b", "c"))
    assert (part.stored.attributes, part.stored.filters) == (("a", "b", "c"), ())


def test_name_of_a_call_is_its_path_or_the_model_itself() -> None:
    assert (name_of_call("rank"), name_of_call("")) == ("call 'rank'", "the model's call")


def test_vocabulary_rule_of_buckets_may_begin_at_row_0() -> None:
    rule = VocabularyRule(kind="vocabulary", vocabulary="v", oov_buckets=2, oov_first_row=0)
    assert rule.oov_first_row == 0
    assert VocabularyRule(kind="vocabulary", vocabulary="v").oov_first_row is None
