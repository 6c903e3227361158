"""The definitions of scripts and notebooks, and the reasons for what is left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from export.errors import NotConvertible, UsageError
from export.graphs.loading import load_tensorflow, tf
from export.model_code import definitions
from export.model_code.factories import load_factory
from tests.units.export.notebooks import write_notebook


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("A = 3", "A", 3),
        ("A = 4\nB = {'units': [A, 2 * A], 'name': f'a{A}'}", "B", {"units": [4, 8], "name": "a4"}),
        ("A = ['b', 'a']\nB = tuple(sorted(A)) + tuple(range(len(A)))", "B", ("a", "b", 0, 1)),
        ("import json.decoder as decoder\nA = decoder.JSONDecodeError", "A", json.JSONDecodeError),
        ("B = [2]\nA = 'b.c'\nprint(A.partition('.'))", "A", "b.c"),
        ("class A:\n  b = 1\nA().run()\nA.build()\nprint(A)", "A.b", 1),
        ("def f(x): return 1\ndef f(x): return 2", "f(0)", 2),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import no_such\nA = 1", "A", 1),
        ("try:\n  import no_such\n  A = 1\nexcept ImportError:\n  A = 2", "A", 2),
        ("import sys\nif sys.version_info > (3, 0):\n  A = 1\nelse:\n  A = 2", "A", 1),
        ("from __future__ import annotations\nprint(1)\ndef f(x: no_such): return 1", "f(0)", 1),
        ("import dataclasses\n@dataclasses.dataclass\nclass A:\n  b: int = 3", "A().b", 3),
        ("NAMES = ['a']\ndef f(NAMES): NAMES.append(1)\ndef g():\n  NAMES = []\n  NAMES.pop()",
         "NAMES", ["a"]),
        ("KINDS = {}\ndef kind(c):\n  return c\n@kind\nclass A: b = 1\nA()", "A.b", 1),
    ],
)  # fmt: skip
def test_definition_is_taken(text: str, name: str, value: Any, tmp_path: Path) -> None:
    module = definitions(write(tmp_path / "script.py", text))
    assert eval(name, vars(module)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A = input()", "computes it at line 1: `A = input()`, which was left out"),
        ("B = input()\nA = B + 1", "computes it at line 2: `A = B + 1`"),
        ("from sys import argv\nA = argv[1]", "computes it at line 2"),
        ("for A in input():\n  print(A)", "computes it at line 1: `for A in input(): ...`"),
        ("A = 1\nA += 1", "gives it several values, at line 1, and last at line 2: `A += 1`"),
        ("A = [b for b in range(3)]", "computes it at line 1"),
        ("def len(x): return input()\nA = len([])", "computes it at line 2"),
        ("A = 1\nB = A\nA = 2",
         "gives it several values, at line 1, and last at line 3: `A = 2`"),
        ("A = []\nB = {'c': A}\nB['c'].append(1)", "changes it at line 3"),
        ("A = {}\nA['b'] = 1", "changes it at line 2"),
        ("A = {}\nA['b'] = input()", "changes it at line 2: `A['b'] = input()`, so that"),
        ("A = []\nfor b in input():\n  A.append(b)", "changes it at line 2: `for b in input():"),
        ("A = {}\ndef load(): A['b'] = input()\nload()", "changes it at line 2: `def load():"),
        ("A = 1\ndef load():\n  global A\n  A = input()", "changes it at line 2: `def load():"),
        ("class A: b = []\nA.b.append(input())", "changes it at line 2: `A.b.append(input())`"),
    ],
)  # fmt: skip
def test_what_a_file_computes_is_left_and_explained(text: str, reason: str, tmp_path: Path) -> None:
    module = definitions(write(tmp_path / "script.py", text))
    remedy = '; give its value as definitions("script.py", A=...)'
    with pytest.raises(AttributeError) as lacking:
        module.A  # noqa: B018
    assert str(lacking.value).startswith(f"'A' is not defined: script.py {reason}")
    assert str(lacking.value).endswith(remedy)
    assert definitions(tmp_path / "script.py", A=7).A == 7


CLASS = """
class Model:
    {place}

    def __init__(self, units=4):
        self.units = {body}

    def __call__(self, inputs):
        return {called}

"""


@pytest.mark.parametrize(
    "replaced_parts",
    [
        {"place": "units = count"},
        {"body": "count + 1"},
        {"called": "count * inputs"},
    ],
    ids=["class", "build", "call"],
)
def test_name_that_was_left_is_told_where_it_is_needed_and_may_be_given(
    replaced_parts: dict[str, str], tmp_path: Path
) -> None:
    parts = {"place": "pass", "body": "units", "called": "inputs", **replaced_parts}
    script = "import data_of_mine\ncount = data_of_mine.load()\n"
    write(tmp_path / "script.py", script + CLASS.format(**parts))
    with pytest.raises((UsageError, NameError)) as rejected:
        load_factory("script.py:Model", tmp_path, only_definitions=True)()(2)
    message = str(rejected.value)
    assert "script.py computes it at line 2: `count = data_of_mine.load()`" in message
    assert "state its value as code.names.count" in message
    assert load_factory("script.py:Model", tmp_path, names={"count": 3})()(2) in (2, 6)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("class Model:\n  def __init__(self):\n    self.count = COUNT\n", 3),
        ("def of(make): return make\n\n@of\nclass Model:\n  def __init__(self): COUNT\n", 5),
    ],
)  # fmt: skip
def test_error_of_definitions_has_the_line_of_the_file(
    text: str, line: int, tmp_path: Path
) -> None:
    write(tmp_path / "script.py", f"{text}COUNT = input()\n")
    write_notebook(tmp_path / "note.ipynb", ["print(1)", f"{text}COUNT = input()\n"])
    with pytest.raises(UsageError, match=rf"\(script\.py:{line}\)\Z"):
        load_factory("script.py:Model", tmp_path, only_definitions=True)()
    with pytest.raises(UsageError, match=rf"\(note\.ipynb, cell 2, line {line}\)\Z"):
        load_factory("note.ipynb:Model", tmp_path)()


@pytest.mark.parametrize(
    "cell",
    [
        "!pip install -q no_such\nA = 1",
        "import os\n%matplotlib inline\nA = 1",
        "if True:\n  !ls -l\n  %time print()\nA = 1",
        "%%bash\nls -l 'it",
        "print?\nA = 1",
        "A = (5\n% 4)",
        'B = """\n!pip install\n%time\n"""\nA = len(B.split())- 2',
    ],
)
def test_magics_of_a_notebook_are_ignored(cell: str, tmp_path: Path) -> None:
    model = "class Model:\n  def __init__(self): raise ValueError(A)"
    first = "" if "A = " in cell else "A = 1"
    write_notebook(tmp_path / "note.ipynb", [first, cell, model])
    error = r"ValueError: 1 \(note\.ipynb, cell 3, line 2\)"
    with pytest.raises(NotConvertible, match=error):
        load_factory("note.ipynb:Model", tmp_path)()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"class Model: pass", UsageError, r"note.ipynb is no notebook .* Invalid JSON: "),
        (b'{"worksheets": []}', UsageError, r"'cells': cells: Field required; open it in Jupyter"),
        (b'{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', UsageError,
         r"note.ipynb is a notebook of R; one of Python was expected"),
        (b'{"cells": []}', UsageError, r"'note.ipynb' has no class or function 'Model'; it has no"),
        (b'{"cells": [{"cell_type": "raw"}, {"cell_type": "code", "source": "x = 1\\nif x\\n"}]}',
         NotConvertible,
         r"note.ipynb, cell 1, line 2: expected ':': `if x`; correct the cell, or delete it"),
    ],
)  # fmt: skip
def test_file_that_is_no_notebook_of_python_is_rejected(
    content: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / "note.ipynb").write_bytes(content)
    with pytest.raises(error, match=message):
        load_factory("note.ipynb:Model", tmp_path)


def test_note_tells_what_was_left(tmp_path: Path) -> None:
    text = "import no_such\nclass Model: pass\nclass Failing(no_such.Model): pass\nprint(1)\n"
    write(tmp_path / "script.py", text)
    (note,) = load_factory("script.py:Model", tmp_path, only_definitions=True).notes
    for word in ("1 class", "line 4: `print(1)`", "import no_such", "class Failing"):
        assert word in note


def test_failing_definition_is_not_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    text = "class Model:\n  units = 1\nclass Model(no_such):\n  pass\n"
    write(tmp_path / "script.py", text)
    with pytest.raises(
        UsageError, match=r"'Model' is not defined: script\.py defines it at line 3"
    ):
        load_factory("script.py:Model", tmp_path, only_definitions=True)


SETTINGS = "calls = []\n\ndef set_floatx(dtype):\n  calls.append(dtype)\n"


def test_setting_that_is_left_is_noted_and_a_factory_may_call_it(tmp_path: Path) -> None:
    write(tmp_path / "layers_of_mine_2.py", SETTINGS)
    text = "import layers_of_mine_2 as layers\nlayers.set_floatx(input())\nclass Model: pass\n"
    write(tmp_path / "script.py", text)
    (note,) = load_factory("script.py:Model", tmp_path, only_definitions=True).notes
    assert note.endswith(
        "; `layers.set_floatx(input())` (line 2) changes what layers compute and was left: if "
        "training ran it, call it in a factory file of your own"
    )
    factory = """
from export.model_code import definitions
published = definitions("script.py")
def build():
  published.layers.set_floatx("float16")
  return published.Model()
"""
    write(tmp_path / "factory.py", factory)
    load_factory("factory.py:build", tmp_path)()
    assert sys.modules["layers_of_mine_2"].calls == ["float16"]


def test_factory_file_takes_definitions_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    cells = [
        "task = input()",
        "class Model:\n  def __init__(self, units):\n    self.task = task, units",
    ]
    write_notebook(tmp_path / "code" / "published.ipynb", cells)
    factory = """
from export.model_code import definitions
TASK = object()
published = definitions("published.ipynb", task=TASK)
def build():
  return published.Model(3)
def build_another():
  return published.Modell(3)
"""
    write(tmp_path / "code" / "factory.py", factory)
    monkeypatch.chdir("/")
    loaded = load_factory("code/factory.py:build", tmp_path)
    task, units = loaded().task
    assert (type(task), units) == (object, 3)
    note = "published.ipynb: took 1 class; left 1 statement, the first at cell 1, line 1: `task ="
    assert [line.startswith(note) for line in loaded.notes] == [True]
    missing = "'Modell' is no name of these definitions"
    with pytest.raises(NotConvertible, match=missing):
        load_factory("code/factory.py:build_another", tmp_path)()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ('definitions("script.py", Modl=3)', UsageError,
         r'\Adefinitions\("script.py", Modl=...\): script.py does not use a name \'Modl\'; did you '
         r"mean 'Model'\?\Z"),
        ('definitions("script.py").data', UsageError,
         r"importing it raised AttributeError: 'data' is not defined: script.py computes it at "
         r"line 2: `data = input\(\)`, which was left out; give its value as "
         r'definitions\("script.py", data=...\) \(factory.py:2\)'),
    ],
)  # fmt: skip
def test_definitions_that_a_factory_cannot_take_are_told(
    call: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "script.py", "class Model: pass\ndata = input()\n")
    write(tmp_path / "factory.py", f"from export.model_code import definitions\n{call}\n")
    with pytest.raises(error, match=message):
        load_factory("factory.py:build", tmp_path)


def test_autograph_reads_the_functions_of_a_notebook(tmp_path: Path) -> None:
    load_tensorflow()
    cells = [
        "!pip install tensorflow\nimport tensorflow as tf",
        "@tf.function\ndef positive(x):\n  if tf.reduce_sum(x) > 0:\n    x = x * scale\n  return x",
    ]
    path = write_notebook(tmp_path / "note.ipynb", cells)
    assert definitions(path, scale=2.0).positive(tf.constant([3.0])).numpy() == [6.0]
    with pytest.raises(AttributeError, match="'scale' is no name"):
        definitions(path).scale  # noqa: B018
