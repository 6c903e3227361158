"""The entries of the zoo are complete, and say what they need that is not here."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from examples.zoo.checkouts import Checkouts, NotHere
from examples.zoo.entries import ENTRIES, FACTORIES, SOURCES, ZOO, Entry, entries_of
from examples.zoo.outcomes import PAGE, ROOT
from export.recipe.schema import read_recipe


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entry_has_a_recipe_a_training_and_a_factory(entry: Entry, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(entry.recipe_text)
    job = read_recipe(path)
    source, _, name = entry.name.partition("/")
    assert job.model == name
    assert job.code.table_threshold <= 500
    assert name in _defined(ZOO / source / "train.py")
    file, _, factory = job.code.factory.rpartition(":")
    if file == FACTORIES:
        assert factory in _defined(ZOO / source / FACTORIES)
    else:
        assert file == f"{entry.source.folder}/{entry.file}"


def test_every_recipe_and_source_has_an_entry() -> None:
    recipes = {*ZOO.glob("*/*/recipe.toml"), *ZOO.glob("*/*.toml")}
    assert recipes == {entry.recipe for entry in ENTRIES}
    assert {entry.name.partition("/")[0] for entry in ENTRIES} == set(SOURCES)


def test_missing_checkout_is_rejected_with_the_command_that_gets_it(tmp_path: Path) -> None:
    (entry,) = entries_of(["keras_rs/basic_ranking"])
    with pytest.raises(NotHere, match=r"make zoo DIR=\.\./zoo"):
        Checkouts(None).require(entry)
    clone = re.escape(f"git clone {entry.source.url} {tmp_path}/keras-rs")
    with pytest.raises(NotHere, match=f"keras-rs does not exist: {clone}"):
        Checkouts(tmp_path).require(entry)
    (tmp_path / "keras-rs").mkdir()
    with pytest.raises(NotHere, match=f"has no file examples/basic_ranking.py, .*: {clone}"):
        Checkouts(tmp_path).require(entry)


def test_missing_package_is_rejected_with_the_page_that_installs_it() -> None:
    entry = replace(entries_of(["deepctr/deepfm"])[0], packages=("no-such-package",))
    with pytest.raises(NotHere, match=r"no-such-package not installed: docs/reference/zoo\.md"):
        Checkouts(None).require(entry)


def test_commands_of_the_page_install_every_package_of_the_entries() -> None:
    page = PAGE.read_text().replace("\\\n", "")
    installed = {
        re.split("[~=<>]", word)[0]
        for command in re.findall(r"^\.venv/bin/pip install (.*)", page, re.MULTILINE)
        for word in command.split()
    }
    needed = {package for source in SOURCES.values() for package in source.packages}
    needed |= {package for entry in ENTRIES for package in entry.packages}
    assert needed <= installed


def test_readme_states_the_counts_of_the_page() -> None:
    page = PAGE.read_text()
    readme = " ".join((ROOT / "README.md").read_text().split())
    row = r"^{}: (\d+)\. Runs: (\d+) \((\d+) unchanged"
    developed = re.search(row.format("Developed with"), page, re.MULTILINE)
    tried = re.search(row.format("Tried afterwards"), page, re.MULTILINE)
    assert developed
    assert tried
    assert f"{developed[2]} recommenders that others publish" in readme
    assert f"{developed[3]} are exported and served without an edit or a wrapper" in readme
    assert f"tried on {tried[1]} others" in readme
    assert f"{tried[3]} of them are unchanged" in readme


def _defined(file: Path) -> set[str]:
    """Returns the functions and names of a module."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
