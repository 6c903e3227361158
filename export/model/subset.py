"""Part of a recipe: some of its towers, and what they need; what is left out is proved to be out of their reach.

Towers are pruned to what their outputs need before anything is chosen. So a table that no chosen tower reads is one
that no operation of them reaches, and it is neither planned nor read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.errors import UsageError

if TYPE_CHECKING:
    from export.graph.specs import ModelSpec
    from export.recipe.schema import ExportJob

HOW = ("copy", "link", "inline", "inline-link")
"""The words of `--tables` that say how tables are written; any other is a table's name."""


@dataclass(frozen=True)
class Wanted:
    """What the user asked for: names of towers, or of the tables that may be read; () is all."""

    towers: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.towers or self.tables)


ALL = Wanted()


def read_tables_option(values: Iterable[str]) -> tuple[str | None, tuple[str, ...]]:
    """Reads what `--tables` was given: how tables are written, and which.

    Args:
      values: of each time the option was given: one of HOW, or names with commas between them.
    Returns:
      How, None if it was not said; and the names, () for all.
    Raises:
      UsageError: two ways were said, or a name is empty.
    """
    how, names = [], []
    for value in values:
        if value in HOW:
            how.append(value)
        else:
            names += split_names("--tables", value)
    if len(set(how)) > 1:
        raise UsageError(f"--tables {how[0]} and --tables {how[1]} were given; one of them was expected")
    return (how[0] if how else None), tuple(dict.fromkeys(names))


def split_names(option: str, value: str) -> list[str]:
    """Splits names at commas.

    Raises:
      UsageError: one of them is empty.
    """
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise UsageError(f"{option} {value!r} was given; names with commas between them were expected")
    return names


@dataclass(frozen=True)
class LeftOut:
    """What a subset does without.

    Attributes:
      towers: of the recipe that are not exported.
      tables: table -> the towers that read it, none of which is exported.
    """

    towers: tuple[str, ...]
    tables: Mapping[str, tuple[str, ...]]


NOTHING = LeftOut((), {})


def choose_towers(model: ModelSpec, wanted: Wanted) -> tuple[str, ...]:
    """Returns the towers to be exported.

    With tables alone, all towers that need no other table; with both, the towers, which may need no other table.

    Raises:
      UsageError: a name is unknown, a tower needs a table that is not wanted, or none is left; says which reads which.
    """
    for what, names, known in (("tower", wanted.towers, model.towers), ("table", wanted.tables, model.tables)):
        for name in names:
            if name not in known:
                raise UsageError(f"there is no {what} {name!r}; the recipe's: {', '.join(sorted(known))}")
    chosen = [name for name in model.towers if not wanted.towers or name in wanted.towers]
    if wanted.tables:
        beyond = {name: sorted(set(model.of(name).tables) - set(wanted.tables)) for name in chosen}
        told = "; ".join(f"{name} reads {', '.join(sorted(model.of(name).tables)) or 'none'}" for name in chosen)
        if wanted.towers and any(beyond.values()):
            name = next(name for name in chosen if beyond[name])
            raise UsageError(f"tower {name!r} reads table {beyond[name][0]!r} too, which was not asked for ({told})")
        chosen = [name for name in chosen if not beyond[name]]
        if not chosen:
            raise UsageError(f"no tower does with tables {', '.join(wanted.tables)} alone ({told})")
    return tuple(chosen)


def reduced(job: ExportJob, model: ModelSpec, towers: Iterable[str]) -> ExportJob:
    """Returns the recipe of some towers: without the tables, features, corpora and indexes that only others need.

    A corpus stays if an index that stays is built over it, or a tower that stays reads a feature of it. Inputs keep the
    roles that the towers which go have told.
    """
    from export.model.roles import input_roles
    from export.recipe.schema import FeaturePart  # an export of tables alone does without

    kept = {name: job.towers[name] for name in job.towers if name in set(towers)}
    specs = [model.of(name) for name in kept]
    tables = {table for spec in specs for table in spec.tables}
    inputs = {name for spec in specs for name in spec.inputs}
    indexes = {
        name: part for name, part in job.indexes.items() if part.query_tower in kept and part.candidate_tower in kept
    }
    corpora = {}
    for name, part in job.candidates.items():
        columns = {each: column for each, column in part.features.items() if each in inputs}
        if columns or any(index.corpus == name for index in indexes.values()):
            corpora[name] = part.model_copy(update={"features": columns})
    contexts = {}
    for name, part in job.contexts.items():
        columns = {each: column for each, column in part.features.items() if each in inputs}
        if columns:
            contexts[name] = part.model_copy(update={"features": columns})
    roles = {name: role for name, role in input_roles(model, job).items() if name in inputs}
    parts = {
        name: job.features.get(name, FeaturePart()).model_copy(update={"role": role}) for name, role in roles.items()
    }
    outputs = {name for part in kept.values() for name in part.outputs or ("result",)}
    outputs |= {f"{tower}.{name}" for tower, part in kept.items() for name in part.outputs or ("result",)}
    told = {key: getattr(job.verify, key) for key in ("labels", "expected")}
    told = {key: {name: each for name, each in columns.items() if name in outputs} for key, columns in told.items()}
    read = {rule.vocabulary for part in parts.values() if (rule := part.ids).kind == "vocabulary"}
    return job.model_copy(
        update={
            "towers": kept,
            "tables": {name: part for name, part in job.tables.items() if name in tables},
            "features": parts,
            "vocabularies": {name: part for name, part in job.vocabularies.items() if name in read},
            "candidates": corpora,
            "contexts": contexts,
            "indexes": indexes,
            "verify": job.verify.model_copy(update=told),
        }
    )


def left_out(model: ModelSpec, towers: Iterable[str]) -> LeftOut:
    """Returns what the chosen towers do without."""
    kept = set(towers)
    readers = {
        table: tuple(tower for tower in model.towers if table in model.of(tower).tables) for table in model.tables
    }
    return LeftOut(
        towers=tuple(name for name in model.towers if name not in kept),
        tables={table: by for table, by in readers.items() if not kept & set(by)},
    )
