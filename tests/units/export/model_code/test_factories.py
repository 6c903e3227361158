"""Factories: where they are found, what they are called with, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import ExportError, NotConvertible, UsageError
from export.model_code.factories import factory_of, load_factory
from export.model_code.search_path import RESERVED
from tests.units.export.traced_models import recipe


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_factory_imports_what_lies_beside_it_and_the_path_is_restored(tmp_path: Path) -> None:
    write(tmp_path / "code" / "layers_of_mine.py", "WIDTH = 7\n")
    late = "import layers_of_mine\ndef build():\n    import late_of_mine\n"
    write(tmp_path / "code" / "model.py", f"{late}    return [layers_of_mine.WIDTH]\n")
    write(tmp_path / "code" / "late_of_mine.py", "")
    write(tmp_path / "rankers_a" / "small.py", "def build():\n    return 'small'\n")
    before = list(sys.path)
    build = load_factory("code/model.py:build", tmp_path)
    first = build()
    assert first == build() == [7]
    assert first is not build()
    assert load_factory("rankers_a.small:build", tmp_path)() == "small"
    assert sys.path == before


def test_factory_of_a_changed_file_is_loaded_again_and_that_of_another_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Within a second and of one size: a compiled file looks new.
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    text = "from pathlib import Path\nPath(__file__).with_name('made once').mkdir()\n"
    path = write(tmp_path / "model.py", f"{text}def build():\n    return [1]\n")
    first = load_factory("model.py:build", tmp_path)()
    assert load_factory("model.py:build", tmp_path)() is not first
    (tmp_path / "made once").rmdir()
    path.write_text(f"{text}def build():\n    return [2]\n")
    assert load_factory("model.py:build", tmp_path)() == [2]


@dataclass(frozen=True)
class Refusal:
    """A factory that is refused.

    Attributes:
      words: Words of the message.
      text: The text of model.py.
      reference: The recipe's code.factory.
      options: What else the recipe states of the code.
      files: Further files.
      error: The class of the error.
    """

    words: tuple[str, ...]
    text: str = "def make(): ...\ndef build_all(): ...\n"
    reference: str = "model.py:build"
    options: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    error: type[ExportError] = UsageError


def of_code(text: str, *words: str) -> Refusal:
    return Refusal(words, text, error=NotConvertible)


def of_script(reference: str, *words: str, **options: Any) -> Refusal:
    return Refusal(words, SCRIPT, reference, options)


SCRIPT = """
class Model:
    def __init__(self, units, *, names=("a",), **options):
        self.values = units, names, options
class Plain: ...
class Row(dict):
    def __new__(cls, size): return super().__new__(cls, size=size)
    def __init__(self, size): self.size = size
def build(units=3): return [units]
data = load_data()
"""


FORM = "'file.py:function'"
REFUSED: dict[str, Refusal] = {
    **{
        f"form {reference!r}": Refusal((FORM,), reference=reference)
        for reference in ("model.py", ":build", "")
    },
    "no file": Refusal(("nowhere.py does not exist",), reference="nowhere.py:build"),
    "no package": Refusal(("'nowhere_at_all'",), reference="nowhere_at_all.model:build"),
    "no function": Refusal(("'build'", "build_all, make")),
    "error of the file": of_code("1 / 0", "ZeroDivisionError", "(model.py:1)"),
    "no Python": of_code("def build(:", "SyntaxError", "(model.py"),
    "bytes that are no Python": of_code("size = 3\0", "null bytes"),
    "library": of_code("import a_library_not_there", "'a_library_not_there'"),
    "error of the call": of_code("def build(): raise KeyError('sizes')", "KeyError: 'sizes'"),
    **{
        f"import of {name}": Refusal(
            (f"'{name}'", "rename"),
            f"import {name}.layers_of_mine\ndef build(): return 1\n",
            files=(f"{name}/__init__.py", f"{name}/layers_of_mine.py"),
        )
        for name in RESERVED
    },
    **{
        f"factory in {name}": Refusal(
            (f"'{name}'", "rename"), reference=f"{name}.py:build", files=(f"{name}.py",)
        )
        for name in RESERVED
    },
    "other parameter": of_script(
        "model.py:build", "code.arguments.unit", "did you mean 'units'", arguments={"unit": 3}
    ),
    "no parameter": of_script("model.py:Plain", "code.arguments.a", "none", arguments={"a": 3}),
    "missing argument": of_script("model.py:Row", "code.arguments.size"),
    "name that is not used": of_script(
        "model.py:Model", "code.names.dat", "did you mean 'data'", names={"dat": 3}
    ),
    "names of a whole file": of_script(
        "model.py:build", "code.definitions = true", names={"data": 3}
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_factory_is_refused(case: str, tmp_path: Path) -> None:
    refusal = REFUSED[case]
    if "arguments" in refusal.options or refusal.reference == "model.py:Row":
        refusal.options["only_definitions"] = True
    write(tmp_path / "model.py", refusal.text)
    for name in refusal.files:
        write(tmp_path / name, "def build(): return 1\n")
    with pytest.raises(refusal.error) as rejection:
        load_factory(refusal.reference, tmp_path, **refusal.options)()
    message = str(rejection.value)
    assert [word for word in refusal.words if word not in message] == [], message


def test_bug_of_the_exporter_that_an_import_meets_is_not_the_models(tmp_path: Path) -> None:
    write(tmp_path / "model.py", "from export.report_text import size_text\nsize_text('many')\n")
    with pytest.raises(ValueError, match="many"):
        load_factory("model.py:build", tmp_path)


@pytest.mark.nightly
def test_model_code_with_another_backend_of_keras_is_rejected_with_the_remedy(
    tmp_path: Path,
) -> None:
    text = 'import os\nos.environ["KERAS_BACKEND"] = "jax"\nimport keras\n'
    write(tmp_path / "model.py", text)
    code = (
        "from pathlib import Path; from export.model_code.factories import load_factory; "
        f"load_factory('model.py:build', Path({str(tmp_path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'os.environ.setdefault("KERAS_BACKEND", "jax")' in done.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "built"),
    [
        ("Model", {"units": 3, "names": ["b"], "rate": 0.5}, (3, ["b"], {"rate": 0.5})),
        ("Row", {"size": 3}, None),
        ("build", {"units": {"a": 1}}, None),
    ],
)
def test_arguments_are_given_by_name(
    name: str, arguments: dict[str, object], built: object, tmp_path: Path
) -> None:
    write(tmp_path / "script.py", SCRIPT)
    factory = load_factory(
        f"script.py:{name}", tmp_path, only_definitions=True, arguments=arguments
    )
    model = factory()
    assert model is not factory()
    if built is not None:
        assert model.values == built


def test_function_of_a_file_that_trains_runs_with_definitions_alone(tmp_path: Path) -> None:
    write(tmp_path / "script.py", SCRIPT)
    with pytest.raises(NotConvertible, match=r"'load_data' .*code\.definitions = true"):
        load_factory("script.py:build", tmp_path)
    assert load_factory("script.py:build", tmp_path, only_definitions=True)() == [3]


def test_class_runs_with_its_whole_file_if_the_recipe_says_so(tmp_path: Path) -> None:
    text = "import os\nos.environ.setdefault('MINE', '1')\nsizes = list(map(int, '12'))\n"
    text += "class Model:\n  sizes = sizes\n"
    write(tmp_path / "model.py", text)
    assert load_factory("model.py:Model", tmp_path)().sizes == [1, 2]
    write(tmp_path / "model.py", f"{text}sizes.sort()\n")
    with pytest.raises(UsageError, match=r"state its value as code\.names\.sizes"):
        load_factory("model.py:Model", tmp_path)
    assert load_factory("model.py:Model", tmp_path, only_definitions=False)().sizes == [1, 2]


def test_vocabularies_are_arrays_of_their_keys_at_any_depth(tmp_path: Path) -> None:
    write(tmp_path / "titles.txt", "Toy Story\nHeat\n")
    write(tmp_path / "users.txt", "7\n-5\n")
    text = "keys = load()\nclass Model:\n  def __init__(self, users): self.values = users, keys"
    write(tmp_path / "script.py", text)

    def built(keys: dict[str, Any]) -> Any:
        code = {"arguments": {"users": {"vocabulary": "users"}}, "names": {"keys": keys}}
        sections = {
            "code": {"factory": "script.py:Model", **code},
            "vocabularies": {
                "titles": {"file": "titles.txt"},
                "users": {"file": "users.txt", "dtype": "int64"},
            },
        }
        return factory_of(recipe("script.py:Model", {}, {}, sections), tmp_path)().values

    users, values = built(
        {"title": {"vocabulary": "titles"}, "ages": [18, {"vocabulary": "users"}]}
    )
    assert users.dtype == np.int64
    assert users.tolist() == values["ages"][1].tolist() == [7, -5]
    assert values["title"].tolist() == ["Toy Story", "Heat"]
    assert values["ages"][0] == 18
    message = r"code.names.keys.movies names vocabulary 'movies', .*; vocabularies: titles, users"
    with pytest.raises(UsageError, match=message):
        built({"movies": [{"vocabulary": "movies"}]})
