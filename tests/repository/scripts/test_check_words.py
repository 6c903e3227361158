"""`scripts/check_words`: the rules find the words that they ban, in prose alone."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check_words"


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("check_words", str(SCRIPT))
    specification = importlib.util.spec_from_loader(loader.name, loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rules(script: Any) -> Any:
    return script.read_rules(script.RULES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("The service answers.", "instead of 'answers'"),
        ("A front calls the shards.", "Use 'router' instead of 'front'"),
        ("Put a front in front of the shards.", "Use 'router' instead of 'front'"),
        ("The least size of a table.", "Use 'minimum' instead of 'least'"),
        ("- at\n- least", "Use 'minimum' instead of 'least'"),
        ("The most that it may take.", "instead of 'The most'"),
        ("Tables of so many bytes.", "instead of 'so many'"),
        ("It searches by brute force.", "Use 'exact search' instead of 'brute force'"),
        ("It serves 100 requests a second.", "not 'requests a second'"),
        ("It serves 100 requests\na second.", "not 'requests a second'"),
        ("A scale a row.", "not 'scale a row'"),
        ("The index' vectors.", "'index''"),
        ("- `code` in a list:\n    the service told", "instead of 'told'"),
        ("!!! note\n    The service told.", "instead of 'told'"),
    ],
)
def test_banned_word_is_found_once(script: Any, rules: Any, text: str, message: str) -> None:
    actual = script.check(text, rules)
    assert len(actual) == 1
    assert message in actual[0][1]


@pytest.mark.parametrize(
    "text",
    [
        "The response is `answer`, and ``the `answer` ``.",
        "```\nanswer\n```",
        "1. Run:\n   ```sh\n   answer\n   ```",
        "A diagram:\n\n    answer\n\n    answer",
        "[Overload](answers.md#answer), <https://example.org/answer>, https://example.org/answer",
        '<a id="answer"></a> <!-- answer -->',
        "<!-- vale off -->\nanswer\n<!-- vale on -->",
        "At least 1, at most 2, at\nleast 3; the least recently used and the most recent.",
        "Put a proxy in front of the service. The front end is another program.",
        "Most requests need most of the shards.",
        "A brute-force index and many brute-force\n  indexes.",
        "A second replica; within a second. A client calls a second system.",
        "The index's vectors, the indexes' vectors and the 'max' of both.",
        "| at | `code` a second |",
    ],
)
def test_other_text_passes(script: Any, rules: Any, text: str) -> None:
    assert script.check(text, rules) == []


def test_comments_of_a_configuration_are_checked_and_its_values_are_not(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text("# A comment.\nanswer: answer # an answer\n")
    assert script.main([str(path)]) == 1
    assert capsys.readouterr().out.count("compose.yaml:2: ") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("extends: occurrence\nmessage: a\nlevel: error\n", "'occurrence'"),
        ("extends: existence\nmessage: a\nlevel: error\ntokens: [a]\nscope: list\n", "scope"),
        ("extends: existence\nmessage: a\nlevel: error\ntokens: [(a)]\n", r"\(\?:\.\.\.\)"),
    ],
)
def test_rule_that_the_script_would_apply_wrongly_is_rejected(
    script: Any, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "Rule.yml").write_text(content)
    with pytest.raises(ValueError, match=message):
        script.read_rules(tmp_path)
