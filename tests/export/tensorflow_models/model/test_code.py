import subprocess
import sys
from pathlib import Path

import pytest

import export
from export.errors import NotConvertible, UsageError
from export.tensorflow_models.model.code import RESERVED, load_factory


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
    with pytest.raises(UsageError) as refused:
        load_factory("model.py:WIDTH", tmp_path)
    assert str(refused.value) == (
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
        UsageError, match=r"'package.module:function' or 'file.py:function' was expected"
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
        ("def build(rows): return rows", r"missing 1 required positional argument: 'rows'"),
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
        "from pathlib import Path; from export.tensorflow_models.model.code import load_factory; "
        f"load_factory('model.py:build', Path({str(tmp_path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
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
def test_load_factory_with_the_name_of_a_rowcast_package_is_refused(
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
def test_load_factory_model_that_imports_a_hidden_package_is_refused(
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


def test_attribute_error_beside_packages_of_our_names_names_all_of_them(tmp_path: Path) -> None:
    write(tmp_path / "export.py", "")
    write(tmp_path / "bundle" / "__init__.py", "")
    write(tmp_path / "model.py", "import export\nexport.layers\n")
    told = (
        r"\Afactory model.py:build: importing it raised AttributeError: module 'export' has no "
        r"attribute 'layers'\. The model code imports 'bundle' and 'export', which is a package of "
        r"rowcast itself and hides the user's own; rename the user's package\Z"
    )
    with pytest.raises(UsageError, match=told):
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
