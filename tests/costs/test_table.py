from __future__ import annotations

from pathlib import Path

import pytest

from tests.costs.table import Costs, budget_error, converted, mark_errors, nightly_entry

FILES = {f"tests/test_{number:02}.py": 10.0 for number in range(20)}
COSTLY = "tests/test_00.py::test_costly"
TABLE = Costs(FILES, {COSTLY: 9.0})


def with_file(path: str, seconds: float) -> Costs:
    return Costs({**FILES, path: seconds}, {})


@pytest.mark.parametrize(
    ("measured", "error"),
    [
        (TABLE, ""),
        (Costs({}, {}), ""),
        (with_file("tests/test_03.py", 19.9), ""),
        (with_file("tests/test_new.py", 4.0), ""),
        (
            with_file("tests/test_03.py", 21.0),
            "tests/test_03.py: 10.0 CPU s in the table, 21.0 now",
        ),
        (with_file("tests/test_new.py", 4.1), "tests/test_new.py: 0.0 CPU s in the table, 4.1 now"),
    ],
)
def test_growth_above_noise_of_more_than_a_fiftieth_of_the_whole_is_an_error(
    measured: Costs, error: str
) -> None:
    message = budget_error(measured, TABLE)
    assert message == "" if not error else error in message


def test_error_of_the_budget_names_the_command_that_writes_the_table() -> None:
    message = budget_error(with_file("tests/test_new.py", 30.0), TABLE)
    assert "cost 30 CPU s more than the 200 of the table; 4 are allowed" in message
    assert "`make costs`" in message


@pytest.mark.parametrize(
    ("name", "is_marked", "measured", "error"),
    [
        (COSTLY, True, 0.0, ""),
        (COSTLY, False, 19.0, ""),
        (COSTLY, False, 21.0, "costs 21 CPU s, and is not marked slow"),
        ("tests/test_00.py::test_quick", False, 0.0, ""),
        ("tests/test_00.py::test_quick", True, 3.0, "is marked slow, but costs less than 2 CPU s"),
        ("tests/test_new.py::test_new", True, 2.5, ""),
        ("tests/test_new.py::test_new", True, 0.0, "is marked slow, but costs less than 2 CPU s"),
        ("tests/test_new.py::test_new", False, 10.5, "costs 10 CPU s, and is not marked slow"),
        ("tests/test_not_run.py::test_new", True, 0.0, ""),
    ],
)
def test_marks_follow_the_table_and_the_run_where_the_table_has_no_entry(
    name: str, is_marked: bool, measured: float, error: str
) -> None:
    run = Costs({**FILES, "tests/test_new.py": measured}, {name: measured})
    errors = mark_errors({name: is_marked}, run, TABLE)
    assert errors == ([f"{name} {error}"] if error else [])


def test_cases_of_a_test_are_judged_by_the_costliest() -> None:
    name = "tests/test_new.py::test_cases"
    costs = {f"{name}[first]": 12.0, f"{name}[second]": 0.0, f"{name}[third]": 3.0}
    run = Costs({**FILES, "tests/test_new.py": 15.0}, costs)
    assert mark_errors(dict.fromkeys(costs, True), run, TABLE) == []
    assert mark_errors(dict.fromkeys(costs, False), run, TABLE) == [
        f"{name} costs 12 CPU s, and is not marked slow"
    ]
    one_marked = {**dict.fromkeys(costs, False), f"{name}[first]": True}
    assert mark_errors(one_marked, run, TABLE) == []


def test_cheap_test_may_be_marked_if_its_fixtures_are_costly() -> None:
    name = "tests/test_00.py::test_needs_training"
    errors = [f"{name} is marked slow, but costs less than 2 CPU s"]
    assert mark_errors({name: True}, TABLE, TABLE) == errors
    assert mark_errors({name: True}, TABLE, Costs(FILES, {}, {name: 30.0})) == []
    assert mark_errors({name: False}, TABLE, Costs(FILES, {}, {name: 30.0})) == []
    new = "tests/test_new.py::test_needs_training"
    measured = Costs({**FILES, "tests/test_new.py": 31.0}, {}, {new: 30.0})
    assert mark_errors({new: True}, measured, TABLE) == []


def test_nightly_tests_have_a_budget_of_their_own_and_are_marked_as_others() -> None:
    entry = nightly_entry("tests/test_00.py")
    name = "tests/test_00.py::test_kills"
    table = Costs({**FILES, entry: 30.0}, {name: 30.0})
    assert budget_error(table, table) == ""
    assert budget_error(Costs(FILES, {}), table) == ""  # a change runs no nightly test
    assert f"{entry}: 30.0 CPU s in the table, 61.0" in budget_error(
        Costs({**FILES, entry: 61.0}, {}), table
    )
    assert mark_errors({name: True}, table, table) == []
    assert mark_errors({name: False}, table, table) == [
        f"{name} costs 30 CPU s, and is not marked slow"
    ]
    assert converted([*FILES, entry], table, table) == table
    paths = set(FILES)
    assert table.updated(table, paths) == table
    assert table.updated(Costs({"tests/test_01.py": 10.0}, {}), paths) == table
    assert entry not in table.updated(Costs({"tests/test_00.py": 10.0}, {}), paths).files


def test_costs_of_a_host_of_half_the_speed_are_those_of_the_table() -> None:
    order = list(FILES)
    measured = Costs({path: 2 * seconds for path, seconds in FILES.items()}, {COSTLY: 18.0})
    assert converted(order, measured, TABLE) == TABLE


def test_costs_of_a_host_that_slows_down_in_the_middle_are_those_of_the_table() -> None:
    order = [f"tests/test_{number:03}.py" for number in range(100)]
    table = Costs(dict.fromkeys(order, 5.0), {})
    slower = {path: 15.0 if path > order[49] else 5.0 for path in order}
    costs = converted(order, Costs(slower, {}), table)
    assert budget_error(costs, table) == ""


def test_costs_of_a_file_that_grew_are_not_taken_for_a_slower_host() -> None:
    measured = with_file("tests/test_03.py", 30.0)
    assert converted(list(FILES), measured, TABLE).files["tests/test_03.py"] == 30.0


def test_updated_table_keeps_files_that_did_not_run_and_drops_those_that_are_gone(
    tmp_path: Path,
) -> None:
    table = Costs(
        {"tests/test_a.py": 5.0, "tests/test_b.py": 6.0, "tests/test_gone.py": 7.0},
        {
            "tests/test_a.py::test_x": 4.0,
            "tests/test_b.py::test_y": 6.0,
            "tests/test_gone.py::test_z": 7.0,
        },
        {"tests/test_a.py::test_v": 3.0, "tests/test_b.py::test_v": 3.0},
    )
    measured = Costs({"tests/test_a.py": 3.0}, {"tests/test_a.py::test_w": 2.5})
    updated = table.updated(measured, {"tests/test_a.py", "tests/test_b.py"})
    assert updated == Costs(
        {"tests/test_a.py": 3.0, "tests/test_b.py": 6.0},
        {"tests/test_a.py::test_w": 2.5, "tests/test_b.py::test_y": 6.0},
        {"tests/test_b.py::test_v": 3.0},
    )

    shared = Costs({"tests/ (collection)": 9.0, "tests/test_a.py": 5.0, "tests/test_b.py": 6.0}, {})
    of_a = Costs({"tests/ (collection)": 1.0, "tests/test_a.py": 3.0}, {})
    assert shared.updated(of_a, set(shared.files)).files == {**shared.files, "tests/test_a.py": 3.0}
    of_all = Costs({**shared.files, "tests/ (collection)": 1.0}, {})
    assert shared.updated(of_all, set(shared.files)) == of_all

    updated.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == updated
