import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import export
from export.errors import NotConvertible, UsageError
from export.model_code.factories import code_notes, factory_of, load_factory
from export.model_code.search_path import RESERVED
from export.recipe.schema import ExportJob
from tests.units.export.notebooks import write_notebook


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_load_factory_file_beside_the_recipe_builds_independent_models(tmp_path: Path) -> None:
    write(tmp_path / "code" / "layers_of_mine.py", "WIDTH = 7\n")
    write(
        tmp_path / "code" / "model.py",
        "import layers_of_mine\ndef build():\n    return [layers_of_mine.WIDTH]\n",
    )
    build = load_factory("code/model.py:build", tmp_path)
    first = build()
    second = build()
    assert first == second == [7]
    assert first is not second


def test_load_factory_changed_file_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Within a second and of one size: a compiled file looks new.
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = write(tmp_path / "model.py", "def build():\n    return 1\n")
    assert load_factory("model.py:build", tmp_path)() == 1
    path.write_text("def build():\n    return 2\n")
    assert load_factory("model.py:build", tmp_path)() == 2


def test_load_factory_runs_a_file_once(tmp_path: Path) -> None:
    text = "from pathlib import Path\nPath(__file__).with_name('made once').mkdir()\n"
    write(tmp_path / "model.py", text + "def build():\n    return object()\n")
    first = load_factory("model.py:build", tmp_path)()
    assert load_factory("model.py:build", tmp_path)() is not first


def test_load_factory_of_a_file_that_raised_runs_it_again(tmp_path: Path) -> None:
    write(tmp_path / "model.py", "from pathlib import Path\nPath(__file__ + '.there').stat()\n")
    with pytest.raises(NotConvertible, match="FileNotFoundError"):
        load_factory("model.py:stat", tmp_path)
    with pytest.raises(NotConvertible, match="FileNotFoundError"):
        load_factory("model.py:stat", tmp_path)
    write(tmp_path / "model.py.there", "")
    with pytest.raises(UsageError, match="has no function 'stat'; it has none"):
        load_factory("model.py:stat", tmp_path)


def test_load_factory_leaves_a_folder_that_was_on_the_path_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "model.py", "def build():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.path)
    load_factory("model.py:build", tmp_path)()
    assert sys.path == before


def test_load_factory_that_is_no_function_lists_those_of_the_module(tmp_path: Path) -> None:
    text = """
from os.path import join
WIDTH = 3
class Model: ...
def _private(): ...
def make(): ...
def build_all(): ...
"""
    write(tmp_path / "model.py", text)
    with pytest.raises(UsageError) as rejected:
        load_factory("model.py:WIDTH", tmp_path)
    assert str(rejected.value) == (
        "code.factory: 'model.py' has no function 'WIDTH'; it has build_all, make"
    )
    assert load_factory("model.py:Model", tmp_path)() is not None


def test_load_factory_package_beside_the_recipe_is_found(tmp_path: Path) -> None:
    write(tmp_path / "rankers_a" / "__init__.py", "")
    write(tmp_path / "rankers_a" / "small.py", "def build():\n    return 'small'\n")
    assert load_factory("rankers_a.small:build", tmp_path)() == "small"


def test_load_factory_import_inside_the_function_is_found_and_the_path_is_restored(
    tmp_path: Path,
) -> None:
    write(tmp_path / "late_of_mine.py", "VALUE = 3\n")
    write(
        tmp_path / "model.py",
        "def build():\n    import late_of_mine\n    return late_of_mine.VALUE\n",
    )
    before = list(sys.path)
    assert load_factory("model.py:build", tmp_path)() == 3
    assert sys.path == before


@pytest.mark.parametrize("reference", ["model.py", "model:", ":build", "model.py:build()", ""])
def test_load_factory_malformed_reference_names_the_form(reference: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"'package.module:function', 'file.py:function' or 'notebook.ipynb:Class' was exp",
    ):
        load_factory(reference, tmp_path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:build", r"'nowhere.py', and .*nowhere.py does not exist"),
        (
            "nowhere_at_all.model:build",
            r"there is no module 'nowhere_at_all', neither installed nor in",
        ),
        ("half_there.model:build", r"there is no module 'half_there.model', neither"),
        ("model.py:build", r"has no function 'build'; it has build_all, make"),
    ],
)
def test_load_factory_missing_factory_names_what_is_missing(
    reference: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "model.py", "def make(): ...\ndef build_all(): ...\n")
    write(tmp_path / "half_there" / "__init__.py", "")
    with pytest.raises(UsageError, match=message):
        load_factory(reference, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1 / 0",
            r"\Afactory model.py:build: importing it raised ZeroDivisionError: division by zero "
            r"\(model.py:1\)\Z",
        ),
        ("raise SystemExit(3)", r"importing it raised SystemExit: 3 \(model.py:1\)"),
        ("import a_library_not_there", r"No module named 'a_library_not_there'"),
        (
            "def build(): raise KeyError('sizes')",
            r"factory model.py:build: calling it raised KeyError: 'sizes'",
        ),
        ("def build(): pass", r"returned None; it must return the built model"),
    ],
)
def test_factory_that_raises_names_the_error(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "model.py", f"{text}\n")
    with pytest.raises(NotConvertible, match=message):
        load_factory("model.py:build", tmp_path)()


def test_module_that_imports_what_is_not_there_is_told_from_one_that_is_not_there(
    tmp_path: Path,
) -> None:
    write(tmp_path / "half_here" / "__init__.py", "")
    write(tmp_path / "half_here" / "model.py", "import half_here.other\n")
    with pytest.raises(NotConvertible, match=r"raised ModuleNotFoundError: No module named 'half_"):
        load_factory("half_here.model:build", tmp_path)


@pytest.mark.parametrize("then", ["", "raise ValueError('no operation of that backend')\n"])
def test_model_code_with_another_backend_of_keras_is_rejected_with_the_remedy(
    tmp_path: Path, then: str
) -> None:
    text = f'import os\nos.environ["KERAS_BACKEND"] = "jax"\nimport keras\n{then}'
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
    assert "NotConvertible: factory model.py:build: the model code makes Keras run on jax" in (
        done.stderr
    )
    assert 'os.environ.setdefault("KERAS_BACKEND", "jax")' in done.stderr


@pytest.mark.parametrize("reference", ["{name}.py:build", "{name}.model:build"])
@pytest.mark.parametrize("name", RESERVED)
def test_load_factory_with_the_name_of_a_rowcast_package_is_rejected(
    name: str, reference: str, tmp_path: Path
) -> None:
    for file in (f"{name}.py", f"{name}/__init__.py", f"{name}/model.py"):
        write(tmp_path / file, "def build():\n    return 1\n")
    with pytest.raises(
        UsageError, match=f"'{name}' is a package of rowcast itself, which hides it; rename"
    ):
        load_factory(reference.format(name=name), tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "from {name} import layers_of_mine",
        "import {name}.layers_of_mine",
        "import {name}\n{name}.layers_of_mine",
    ],
)
@pytest.mark.parametrize("name", RESERVED)
def test_load_factory_model_that_imports_a_hidden_package_is_rejected(
    name: str, line: str, tmp_path: Path
) -> None:
    write(tmp_path / name / "__init__.py", "")
    write(tmp_path / name / "layers_of_mine.py", "WIDTH = 3\n")
    write(tmp_path / "model.py", line.format(name=name) + "\ndef build():\n    return 1\n")
    with pytest.raises(
        UsageError,
        match=f"imports '{name}', which is a package of rowcast itself and hides the user's",
    ):
        load_factory("model.py:build", tmp_path)


def test_attribute_error_of_a_hidden_package_names_it(tmp_path: Path) -> None:
    write(tmp_path / "export.py", "")
    write(tmp_path / "bundle" / "__init__.py", "")
    write(tmp_path / "model.py", "import export\nexport.layers\n")
    message = (
        r"\Afactory model.py:build: importing it raised AttributeError: module 'export' has no "
        r"attribute 'layers'\. The model code imports 'export', which is a package of "
        r"rowcast itself and hides the user's own; rename the user's package\Z"
    )
    with pytest.raises(UsageError, match=message):
        load_factory("model.py:build", tmp_path)


@pytest.mark.parametrize(
    ("text", "package"),
    [("raise ValueError('no')", "export"), ("import a_library_not_there", "exported")],
    ids=["another error", "another package"],
)
def test_error_that_no_hidden_package_explains_is_told_as_it_is(
    text: str, package: str, tmp_path: Path
) -> None:
    write(tmp_path / package / "__init__.py", "")
    write(tmp_path / "model.py", text)
    with pytest.raises(NotConvertible, match="importing it raised"):
        load_factory("model.py:build", tmp_path)


def test_packages_of_a_checkout_of_rowcast_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Path(export.__file__).parents[1]
    write(tmp_path / "model_elsewhere.py", "import a_library_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotConvertible, match="No module named 'a_library_not_there'"):
        load_factory("model_elsewhere:build", checkout)


SCRIPT = """
import json
class Model:
    def __init__(self, units, *, names=("a",), **options):
        self.values = units, names, options
        if options.get("unknown"):
            raise ValueError(f"unknown options: {options}")
class Plain: ...
class Row(dict):
    def __new__(cls, size): return super().__new__(cls, size=size)
    def __init__(self, size): self.size = size
def build(units=3): return [units]
def positional(units, /): return units
loads = json.loads
data = load_data()
model = Model(data.units)
"""


@pytest.mark.parametrize(
    ("name", "arguments", "built"),
    [
        ("Model", {"units": 3}, (3, ("a",), {})),
        ("Model", {"units": 3, "names": ["b"], "rate": 0.5}, (3, ["b"], {"rate": 0.5})),
        ("Row", {"size": 3}, None),
        ("Plain", {}, None),
        ("build", {"units": {"a": 1}}, None),
        ("loads", {"s": "[1]"}, None),
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


def test_each_model_gets_arguments_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "script.py", SCRIPT)
    sizes = {"units": [3]}
    factory = load_factory("script.py:Model", tmp_path, only_definitions=True, arguments=sizes)
    factory().values[0].append(4)
    assert factory().values[0] == [3]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("build", {"unit": 3},
         r"\Acode.arguments.unit: script.py:build has no such parameter; its parameters: units=3; "
         r"did you mean 'units'\?\Z"),
        ("Plain", {"a": 3}, r"code.arguments.a: .* has no such parameter; its parameters: none\Z"),
        ("Row", {}, r"code.arguments: script.py:Row needs size; its parameters: size\. State them, "
         r"as in code.arguments.size = \.\.\., or name a function that needs none\Z"),
        ("Model", {"units_": 3},
         r"script.py:Model needs units; its parameters: units, names=\('a',\), \*\*options"),
    ],
)  # fmt: skip
def test_arguments_that_a_factory_does_not_take_are_told_with_its_parameters(
    name: str, arguments: dict[str, object], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "script.py", SCRIPT)
    with pytest.raises(UsageError, match=message):
        load_factory(f"script.py:{name}", tmp_path, only_definitions=True, arguments=arguments)


def test_error_beside_arguments_that_only_stars_take_names_them(tmp_path: Path) -> None:
    write(tmp_path / "script.py", SCRIPT)
    arguments = {"units": 3, "unknown": True}
    message = r"ValueError: unknown options: .*\(script.py:7\); unknown of code.arguments is taken"
    with pytest.raises(NotConvertible, match=message):
        load_factory("script.py:Model", tmp_path, only_definitions=True, arguments=arguments)()


@pytest.mark.parametrize(
    ("reference", "definitions", "names", "message"),
    [
        ("script.py:model", True, {},
         r"'model' is not defined: script.py computes it at line 16: `model = Model\(data.units\)`"
         r", which was left out; name a class or a function: the definitions have Model, Plain, "
         r"Row, build, positional\Z"),
        ("script.py:missing", True, {}, r"'script.py' has no class or function 'missing'; it has "),
        ("script.py:Model", None, {"dat": 3},
         r"code.names.dat: script.py does not use a name 'dat'; did you mean 'data'\?"),
        ("script.py:build", None, {"data": 3},
         r"code.names gives values to definitions, but 'script.py' runs as a whole .*; write "
         r"code.definitions = true, or leave code.names out"),
        ("script.py:Model", False, {"data": 3}, r"code.names gives values to definitions"),
        ("half_here.model:build", None, {"data": 3}, r"name its file, or leave code.names out"),
        ("half_here.model:build", True, {},
         r"code.definitions is true, but the module 'half_here.model' is imported as a whole"),
        ("note.ipynb:build", False, {},
         r"code.definitions is false, but of a notebook \(note.ipynb\) only the definitions run"),
    ],
)  # fmt: skip
def test_definitions_that_a_recipe_cannot_have_are_told(
    reference: str,
    definitions: bool | None,
    names: dict[str, object],
    message: str,
    tmp_path: Path,
) -> None:
    write(tmp_path / "script.py", SCRIPT)
    write_notebook(tmp_path / "note.ipynb", [SCRIPT])
    with pytest.raises(UsageError, match=message):
        load_factory(reference, tmp_path, only_definitions=definitions, names=names)


def test_function_of_a_file_that_trains_runs_with_definitions_alone(tmp_path: Path) -> None:
    write(tmp_path / "script.py", SCRIPT)
    message = (
        r"importing it raised NameError: name 'load_data' is not defined \(script.py:15\)\. If the "
        r"file does more than define the model, write code.definitions = true: then only its "
        r"definitions run\Z"
    )
    with pytest.raises(NotConvertible, match=message):
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


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., ExportJob]:
    """Returns what makes a recipe, beside which vocabularies lie."""
    write(tmp_path / "titles.txt", "Toy Story\nHeat\n")
    write(tmp_path / "users.txt", "7\n-5\n")

    def make(**code: object) -> ExportJob:
        page = {
            "model": "movies",
            "checkpoint": {"path": "checkpoint"},
            "code": code,
            "inputs": {},
            "towers": {},
            "output": {"root": "bundles"},
            "vocabularies": {
                "titles": {"file": "titles.txt"},
                "users": {"file": "users.txt", "dtype": "int64"},
            },
        }
        return ExportJob.model_validate(page)

    return make


def test_vocabularies_are_arrays_of_their_keys_at_any_depth(
    job: Callable[..., ExportJob], tmp_path: Path
) -> None:
    text = "keys = load()\nclass Model:\n  def __init__(self, users): self.values = users, keys"
    write(tmp_path / "script.py", text)
    keys = {"title": {"vocabulary": "titles"}, "ages": [18, {"vocabulary": "users"}], "k": 3}
    recipe = job(
        factory="script.py:Model",
        arguments={"users": {"vocabulary": "users"}},
        names={"keys": keys},
    )
    users, values = factory_of(recipe, tmp_path)().values
    assert users.dtype == np.int64
    assert users.tolist() == [7, -5]
    assert values["title"].tolist() == ["Toy Story", "Heat"]
    assert values["ages"][0] == 18
    assert values["ages"][1].tolist() == [7, -5]
    assert values["k"] == 3
    assert code_notes(recipe, tmp_path)[0].startswith("script.py: took 1 class; left 1 statement")


def test_vocabulary_that_is_not_there_is_told(
    job: Callable[..., ExportJob], tmp_path: Path
) -> None:
    names = {"keys": {"movies": [{"vocabulary": "movies"}]}}
    recipe = job(factory="script.py:Model", names=names)
    message = r"code.names.keys.movies names vocabulary 'movies', .*; vocabularies: titles, users"
    with pytest.raises(UsageError, match=message):
        factory_of(recipe, tmp_path)
