"""Random histories of changes of a corpus in a changes file, for versions with other schemas, and
what they leave, by a model of dictionaries.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from bundle.changes.file import ChangesFile, StateWriter
from bundle.changes.states import contents_of
from bundle.errors import CopyDiffers
from bundle.features.columns import Column
from bundle.format.changes_position import ChangesPosition
from bundle.format.manifest import Corpus
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import StoreWriter
from service.changes.changed_version import ChangedVersion
from service.changes.checks import CheckedChange
from service.changes.numbers import counting_states
from service.contract.changes import CHANGES
from service.versions.version import LoadedStore, ModelVersion

BASE = 5
"""How many candidates the bundles have; changes are of some others, too."""
KEYS = 8
LATE_S = 4e9
EXPIRED_S = 1.0
WAIT_S = 60.0

Key = int | str
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Schema:
    """The columns of a corpus by their types.

    Attributes:
      features: The types of its features.
      attributes: The types of its attributes.
      id_dtype: The type of its ids.
      corpus: Its name.
    """

    features: Mapping[str, str]
    attributes: Mapping[str, str]
    id_dtype: str = "int64"
    corpus: str = "movies"

    def key(self, number: int) -> Key:
        """Returns the id of a candidate."""
        return number if self.id_dtype == "int64" else f"m-{number}"


FEATURES = {"movie": "int64", "genres": "list<string>"}
ATTRIBUTES = {"title": "string", "year": "int64", "rating": "double"}
SCHEMAS = (
    Schema(FEATURES, ATTRIBUTES),
    Schema(FEATURES, {"title": "string", "rating": "double"}),
    Schema(FEATURES, ATTRIBUTES | {"studio": "string", "year": "string"}),
    Schema(FEATURES | {"age": "float"}, ATTRIBUTES | {"rating": "int64"}),
    Schema(FEATURES | {"movie": "string"}, ATTRIBUTES),
    Schema({"movie": "int64"}, ATTRIBUTES),
    Schema(FEATURES, ATTRIBUTES, id_dtype="string"),
    Schema(FEATURES, ATTRIBUTES, corpus="films"),
)
POOLS: dict[str, list[Any]] = {
    "int64": [1, 2, 2001],
    "double": [0.5, 3.0, -1.25],
    "float": [0.5, -2.0],
    "string": ["", "a", "é"],
    "list<string>": [[], ["a"], ["b", "a"]],
}
PYTHON_TYPES = {"int64": int, "string": str, "float": float, "list<string>": list}
TYPES = {
    "int64": pa.int64(),
    "double": pa.float64(),
    "float": pa.float32(),
    "string": pa.string(),
    "list<string>": pa.list_(pa.string()),
}


class Event(NamedTuple):
    """A change of a candidate as a whole, or of one attribute.

    Attributes:
      order: Its place among all events.
      number: The number that it counts for.
      training: The version whose vectors were sent; 0: none were.
      expires_s: When the candidate expires.
      values: The features and attributes, or the value of the attribute; None: a deletion.
    """

    order: int
    number: int | None
    training: int
    expires_s: float | None
    values: Any


@dataclass
class Model:
    """What a changes file should hold: the last event of each candidate and attribute."""

    events: dict[tuple[str, Key], dict[str, Event]] = field(default_factory=dict)
    _orders: Iterator[int] = field(default_factory=lambda: count(1))
    order: int = 0

    def copy(self) -> Model:
        """Returns a copy, which goes on with the same orders."""
        events = {item: {**by_part} for item, by_part in self.events.items()}
        return Model(events, self._orders, self.order)

    def take(self, item: tuple[str, Key], parts: Mapping[str, Event]) -> bool:
        """Takes events of one candidate; returns whether any of them counts."""
        there = self.events.get(item, {})
        taken = {}
        for part, event in parts.items():
            judging = [e for name, e in there.items() if part in ("", name) or not name]
            numbers = [e.number for e in judging if e.number is not None]
            number = event.number
            whole = there.get("")
            if number is None:
                number = max(numbers, default=None)
            elif part and max(numbers, default=-1) >= number:
                continue
            elif not part and whole is not None and whole.number is not None:
                is_newly_trained = 0 < whole.training < event.training
                if (whole.number, 0) > (number, is_newly_trained - 1):
                    continue
            self.order = next(self._orders)
            taken[part] = event._replace(number=number, order=self.order)
        if "" in taken:
            number = taken[""].number
            there = {
                name: e
                for name, e in there.items()
                if name and None not in (e.number, number) and e.number > number  # type: ignore[operator]
            }
        if taken:
            self.events[item] = there | taken
        return bool(taken)

    def served(
        self, schema: Schema, base: Mapping[Key, Row], included: int
    ) -> tuple[dict[Key, Row], Counter[str]]:
        """Returns the candidates of a version in their order, and how many are lost by reason.

        Args:
          schema: Of the version.
          base: The candidates of its bundle.
          included: The order of the last event that the bundle contains.
        """
        rows = {**base}
        moved: list[tuple[int, Key, Row]] = []
        lost: Counter[str] = Counter()
        for (corpus, key), there in self.events.items():
            whole = there.get("")
            if whole and whole.order <= included and not whole.training and not whole.expires_s:
                whole = None
            parts = {
                name: event
                for name, event in there.items()
                if name and (whole is not None or event.order > included)
            }
            if whole is None and not parts:
                continue
            if corpus != schema.corpus:
                lost[f"there is no corpus {corpus!r}"] += 1
                continue
            if type(key) is not PYTHON_TYPES[schema.id_dtype]:
                lost["it does not fit"] += 1
                continue
            orders = [event.order for name, event in parts.items() if name in schema.attributes]
            values = {f"attribute:{name}": event.values for name, event in parts.items()}
            row = base.get(key)
            if whole is not None:
                orders.append(whole.order)
                rows.pop(key, None)
                if whole.values is None:
                    continue
                reason = misfit(schema, whole.values)
                if reason:
                    lost[reason] += 1
                else:
                    row = {
                        f"feature:{name}": whole.values[f"feature:{name}"]
                        for name in schema.features
                    }
                    row |= {f"attribute:{name}": None for name in schema.attributes}
                    values = {**whole.values, **values}
            taken = {}
            for column, value in values.items():
                kind, name = column.split(":")
                if name in {"feature": schema.features, "attribute": schema.attributes}[kind]:
                    taken[column] = value
                    if kind == "feature" or has_type(schema.attributes[name], value):
                        continue
                    # No older value is served in its place.
                    taken[column] = None
                if value is not None:
                    lost[f"this version has no place for {kind} {name}"] += 1
            is_expired = (
                whole is not None
                and not misfit(schema, whole.values)
                and whole.expires_s == EXPIRED_S
            )
            if row is not None and (taken or whole is not None):
                rows.pop(key, None)
                if not is_expired:
                    moved.append((max(orders), key, {**row, **taken}))
        moved.sort(key=lambda entry: entry[0])
        return rows | {key: row for _, key, row in moved}, lost


def misfit(schema: Schema, values: Row) -> str:
    """Returns why a corpus does not take the features of a candidate; "": it does."""
    for name in schema.features:
        if f"feature:{name}" not in values:
            return f"feature {name} is missing"
    for name, kind in schema.features.items():
        if not has_type(kind, values[f"feature:{name}"]):
            return "it does not fit"
    return ""


def has_type(kind: str, value: Any) -> bool:
    """Returns whether a value is one of a column."""
    if value is None or (kind == "int64" and isinstance(value, float) and value.is_integer()):
        return True
    if kind == "double":
        return isinstance(value, int | float)
    return isinstance(value, PYTHON_TYPES[kind])


@dataclass
class Bundle:
    """A version, and what it has.

    Attributes:
      schema: Of its corpus.
      base: Its candidates.
      loaded: The version as it was loaded.
      order: The order of the last event that it contains.
      position: The last state that it contains.
      is_lost: Whether the file was restored from a copy without some states that it contains.
    """

    schema: Schema
    base: Mapping[Key, Row]
    loaded: ModelVersion
    order: int = 0
    position: ChangesPosition | None = None
    is_lost: bool = False

    def start(self, file: ChangesFile) -> ChangedVersion:
        """Returns the version with the changes of a file."""
        included = {"changes_included": self.position}
        manifest = self.loaded.manifest.model_copy(update=included)
        version = ChangedVersion(replace(self.loaded, manifest=manifest), file)
        version.follow(file)
        return version

    def included(self, file: ChangesFile) -> int:
        """Returns the sequence up to which it contains the states of a file."""
        if self.position is None or not file.has(self.position):
            return 0
        return self.position.sequence


class Histories:
    """Draws histories.

    Attributes:
      directory: Where the files of one history lie.
      path: Its changes file.
    """

    def __init__(self, directory: Path, plain: ModelVersion, seed: int) -> None:
        """Writes the bundles.

        Args:
          directory: An empty one.
          plain: Any version, whose corpora and indexes are replaced.
          seed: Of the history.
        """
        self.directory = directory
        self.path = directory / "changes.sqlite"
        self.random = np.random.default_rng(seed)
        self.model = Model()
        self._plain = plain
        self._written = count()
        self.bundles = [self._exported(schema, self._first(schema)) for schema in SCHEMAS]
        self._backup: tuple[Path, Model] | None = None
        self._is_restored = False
        """Whether no process has written since the file was restored from a backup."""
        self._open()

    def _open(self) -> None:
        """Starts all processes."""
        self.files = [ChangesFile(self.path, "movies") for _ in range(2)]
        self.copied = ChangesFile(self.directory / "copy.sqlite", "movies")
        self.following = []
        for bundle in self.bundles[: len(SCHEMAS)]:
            file = ChangesFile(self.path, "movies")
            self.following.append((bundle, file, ChangedVersion(bundle.loaded, file)))

    def pick(self, values: Sequence[Any]) -> Any:
        """Returns one of some values."""
        return values[int(self.random.integers(len(values)))]

    def close(self) -> None:
        """Closes all files."""
        for file in (*self.files, self.copied, *(file for _, file, _ in self.following)):
            file.close()

    def draw(self) -> tuple[CheckedChange, dict[tuple[str, Key], dict[str, Event]]]:
        """Returns a change, and its events by candidate."""
        number = int(self.random.integers(len(SCHEMAS)))
        schema = SCHEMAS[number]
        action = self.pick(["upsert", "upsert", "delete", "attributes", "attributes"])
        keys = [schema.key(int(key)) for key in self.random.permutation(KEYS)[: self.pick([1, 2])]]
        numbers = None
        if self.random.random() < 0.6:
            numbers = [int(self.random.integers(8)) for _ in keys]
        expires_s = None
        is_sent = False
        columns: dict[str, list[Any]] = {}
        if action == "upsert":
            expires_s = [self.pick([None, None, LATE_S, EXPIRED_S]) for _ in keys]
            is_sent = bool(self.random.random() < 0.2)
            for name, kind in schema.features.items():
                columns[f"feature:{name}"] = [self.pick(POOLS[kind]) for _ in keys]
        names = [*schema.attributes]
        if action == "attributes":
            names = [names[place] for place in self.random.permutation(len(names))[:2]]
        if action != "delete":
            for name in names:
                pool = [None, *POOLS[schema.attributes[name]]]
                columns[f"attribute:{name}"] = [self.pick(pool) for _ in keys]
        kinds = {f"feature:{name}": kind for name, kind in schema.features.items()}
        kinds |= {f"attribute:{name}": kind for name, kind in schema.attributes.items()}
        arrays = {name: pa.array(values, TYPES[kinds[name]]) for name, values in columns.items()}

        change_class = CHANGES["candidates", action]
        fields: dict[str, Any] = {"ids": np.array(keys, object)}
        if numbers is not None:
            fields["sequences"] = np.array(numbers)
        if expires_s is not None:
            fields["expires_s"] = np.array(expires_s, np.float64)
            fields["features"] = {}
        if action == "attributes":
            fields["attributes"] = {}
        change = CheckedChange(
            request=change_class(**fields),
            store=schema.corpus,
            version=number + 1,
            ids=np.array(keys, np.int64 if schema.id_dtype == "int64" else object),
            contents=contents_of(arrays, {}, len(keys)) if action == "upsert" else (),
            attributes={
                name.removeprefix("attribute:"): [
                    orjson.dumps(value).decode() for value in array.to_pylist()
                ]
                for name, array in arrays.items()
                if action == "attributes"
            },
            is_sent=is_sent,
        )
        events: dict[tuple[str, Key], dict[str, Event]] = {}
        for row, key in enumerate(keys):
            sent = numbers[row] if numbers is not None else None
            values = {name: column[row] for name, column in columns.items()}
            if action == "attributes":
                parts = {
                    name.removeprefix("attribute:"): Event(0, sent, 0, None, value)
                    for name, value in values.items()
                }
            else:
                training = number + 1 if is_sent else 0
                expiry = expires_s[row] if expires_s is not None else None
                whole = Event(0, sent, training, expiry, values if action == "upsert" else None)
                parts = {"": whole}
            events[schema.corpus, key] = parts
        return change, events

    def step(self) -> None:
        """Makes a change, and perhaps something else beside it."""
        self.write(self.pick(self.files))
        for act, share in (
            (self.abort, 0.1),
            (self.follow, 0.5),
            (self.copy, 0.2),
            (self.export, 0.04),
            (self.back_up, 0.1),
            (self.restore, 0.03),
            (self.restart, 0.05),
            (self.forget, 0.05),
        ):
            if self.random.random() < share:
                act()

    def write(self, file: ChangesFile) -> None:
        """Makes a change by a process, and in the model."""
        change, events = self.draw()
        with file.writing(time.monotonic() + WAIT_S) as writer:
            is_outdated = self._put(file, writer, change)
        counts = [self.take({item: parts}) for item, parts in events.items()]
        assert is_outdated == [not counting for counting in counts], (change, self.model)

    def take(self, events: Mapping[tuple[str, Key], Mapping[str, Event]]) -> int:
        """Takes the events of a change that was made; returns how many of them count."""
        counting = sum([self.model.take(item, parts) for item, parts in events.items()])
        if counting:
            self._is_restored = False
        return counting

    def _put(self, file: ChangesFile, writer: StateWriter, change: CheckedChange) -> list[bool]:
        """Writes the states of a change that count, at any time of the clock; returns which of its
        ids have none.
        """
        request = change.request
        before = file.states_of(request.kind, change.store, change.ids.tolist())
        time_s = time.time() + self.pick([0, -1e5, 1e5])
        states, is_outdated = counting_states(change, before, time_s)
        if states:
            writer.put(states)
        outdated: list[bool] = is_outdated.tolist()
        return outdated

    def abort(self) -> None:
        """Fails in the middle of a change, of which nothing is left."""
        file = self.pick(self.files)
        change, _ = self.draw()
        with suppress(ArithmeticError), file.writing(time.monotonic() + WAIT_S) as writer:
            self._put(file, writer, change)
            raise ArithmeticError

    def restart(self) -> None:
        """Starts all processes anew."""
        self.close()
        self._open()

    def back_up(self) -> None:
        """Keeps a copy of the file."""
        if self.files[0].position() is not None and not any(b.is_lost for b in self.bundles):
            path = self.directory / f"backup-{next(self._written)}"
            self.files[0].back_up(path)
            self._backup = path, self.model.copy()

    def restore(self) -> None:
        """Puts the last backup in the place of the file, once."""
        if self._backup is None:
            return
        path, model = self._backup
        self._backup = None
        # One in the middle may have the later states of what the backup has earlier ones of.
        if self.copied.position() != self.files[0].position():
            self._begin_copy()
        self.close()
        for file in self.directory.glob("changes.sqlite*"):
            file.unlink()
        shutil.copy(path, self.path)
        for bundle in self.bundles:
            bundle.is_lost = bundle.order > model.order
        self.model = model
        self._is_restored = True
        self._open()

    def forget(self) -> None:
        """Removes the states of candidates that no bundle and no version has."""
        # Days after they had an effect, which all processes have applied.
        for _, following_file, version in self.following:
            version.follow(following_file)
        file = self.files[0]
        kept = {
            (bundle.schema.corpus, key)
            for bundle in self.bundles
            for key in {
                **bundle.base,
                **self.model.served(bundle.schema, bundle.base, self._order_of(bundle))[0],
            }
        }
        ended = {(state.store, state.id) for state in file.ended(0, math.inf)} - kept
        with file.writing(time.monotonic() + WAIT_S) as writer:
            writer.forget([("candidates", *item) for item in ended])
        for item in ended:
            self.model.events.pop(item)
        # The copy has them still, and a backup would bring them back.
        self._begin_copy()
        self._backup = None

    def export(self) -> None:
        """Exports a version with the changes so far."""
        schema = self.pick(SCHEMAS)
        # An export leaves candidates that expire or were sent vectors to the service.
        kept = Model(
            {
                item: there
                for item, there in self.model.events.items()
                if "" not in there or not (there[""].training or there[""].expires_s)
            }
        )
        rows, _ = kept.served(schema, self._first(schema), 0)
        if not rows:
            return
        bundle = self._exported(schema, rows)
        bundle.position = self.files[0].position()
        bundle.order = self.model.order
        self.bundles.append(bundle)

    def copy(self) -> None:
        """Copies some states; begins anew if the file was restored without some of them."""
        limit = int(self.random.integers(200))
        try:
            states, _, forgotten = self.files[0].after(self.copied.position(), limit)
        except CopyDiffers:
            self._begin_copy()
            return
        if self.copied.lacks(forgotten):
            self._begin_copy()
        elif states:
            with self.copied.writing(time.monotonic() + WAIT_S) as writer:
                writer.copy(states, forgotten)

    def _begin_copy(self) -> None:
        self.copied.close()
        for file in self.directory.glob("copy.sqlite*"):
            file.unlink()
        self.copied = ChangesFile(self.directory / "copy.sqlite", "movies")

    def follow(self) -> None:
        """Has one version apply what is new."""
        _, file, version = self.pick(self.following)
        version.follow(file)

    def check(self) -> None:
        """Compares all versions with the model: those that have followed, and some that start.

        Raises:
          AssertionError: They differ.
        """
        while self.copied.position() != self.files[0].position():
            self.copy()
        for bundle, file, version in self.following:
            version.follow(file)
            self._check_version(bundle, version, "followed")
        for bundle in self.bundles:
            for file in (self.files[1], self.copied):
                version = bundle.start(file)
                self._check_version(bundle, version, "started")
                lost = {reason: dropped.items for reason, dropped in version.dropped.items()}
                _, wanted = self.model.served(bundle.schema, bundle.base, self._order_of(bundle))
                assert lost == wanted, (bundle.schema, lost, wanted)

    def _order_of(self, bundle: Bundle) -> int:
        """Returns the order of the last event of the file that a bundle contains."""
        if bundle.is_lost and not self._is_restored:
            return 0
        # Without states behind a backup, its file may still get to what the bundle contains.
        if bundle.is_lost and not bundle.included(self.files[0]):
            return 0
        return bundle.order

    def _check_version(self, bundle: Bundle, version: ChangedVersion, what: str) -> None:
        expected, _ = self.model.served(bundle.schema, bundle.base, self._order_of(bundle))
        corpus = version.publish().corpora[bundle.schema.corpus]
        positions = np.delete(np.arange(corpus.store.size), corpus.unavailable)
        rows = pa.table({**corpus.store.arrays(positions, [*corpus.store.types])}).to_pylist()
        actual = {row.pop("id"): row for row in rows}
        assert actual == expected, (what, bundle.schema, actual, expected)
        assert [*actual] == [*expected], (what, bundle.schema, [*actual], [*expected])

    def _first(self, schema: Schema) -> dict[Key, Row]:
        """Returns the candidates of a bundle without changes."""
        rows: dict[Key, Row] = {}
        for number in range(BASE):
            row = {
                f"feature:{name}": POOLS[kind][number % len(POOLS[kind])]
                for name, kind in schema.features.items()
            }
            for name, kind in schema.attributes.items():
                row[f"attribute:{name}"] = [None, *POOLS[kind]][number % (1 + len(POOLS[kind]))]
            rows[schema.key(number)] = row
        return rows

    def _exported(self, schema: Schema, rows: Mapping[Key, Row]) -> Bundle:
        path = self.directory / f"store-{next(self._written)}"
        ids = np.array([*rows], np.int64 if schema.id_dtype == "int64" else object)
        columns = {name: [row[name] for row in rows.values()] for name in next(iter(rows.values()))}
        with StoreWriter(path) as writer:
            writer.append(
                ids,
                {
                    name: feature_column(kind, columns[f"feature:{name}"])
                    for name, kind in schema.features.items()
                },
                {
                    name: pa.array(columns[f"attribute:{name}"], TYPES[kind])
                    for name, kind in schema.attributes.items()
                },
            )
            entry = Corpus(file=path.name, **vars(writer.finish()))
        store = CandidateStore(path, entry)
        name = schema.corpus
        loaded = LoadedStore(name=name, entry=entry, filters={}, store=store)
        version = replace(self._plain, corpora={name: loaded}, contexts={}, indexes={})
        return Bundle(schema, rows, version)


def feature_column(kind: str, values: list[Any]) -> Column:
    """Returns the values of a feature as a writer of stores takes them."""
    if kind == "list<string>":
        offsets = np.cumsum([0, *map(len, values)])
        return Column(np.array([name for names in values for name in names], object), offsets)
    dtypes = {"int64": np.int64, "float": np.float32, "string": object}
    return Column(np.array(values, dtypes[kind]))
