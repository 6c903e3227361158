"""Documents of commands (`documents`) as reports for a terminal: tables of what was found, planned
or verified, then what the user should know, then where the result lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from bundle.format.manifest import TableCheck
from export.checkpoint.formats.object_graph import VARIABLE_SUFFIX
from export.cli.documents import Document
from export.report_text import (
    count_text,
    natural,
    partitions_text,
    size_text,
    thousands,
    trained_ids_text,
)

TABLES_SHOWN = 100
"""The number of tables that are shown, the largest ones; --json lists all."""
LINES_SHOWN = 20
"""The number of lines of one kind, or of variables, that `inspect` shows."""


def render(document: Document) -> RenderableType:
    """Returns the report of a document for a terminal."""
    if "saved_by" in document:
        parts = _content(document)
    elif "opened" in document or "verification" in document:
        parts = _verification(document)
    else:
        parts = _plan(document)
    return Group(*parts)


def _content(document: Document) -> Iterator[RenderableType]:
    """Yields the content of a checkpoint: tables, notes, and the largest of the other variables."""
    step = "no step recorded"
    if document["step"] is not None:
        step = f"step {document['step']}"
    saved_by = f"saved by {document['storage']}"
    if document["storage"] == "TensorFlow":
        saved_by = {"objects": "saved as objects", "names": "saved by names"}[document["saved_by"]]
    yield Text(
        f"checkpoint {document['checkpoint']}, {step}, {saved_by}, {document['fingerprint']}"
    )
    yield from _first("incomplete: ", document["problems"])
    if document["complete"]:
        yield Text("all data files are there")
    if document["tables"]:
        yield _tables("tables", document["tables"])
    else:
        yield Text("no table is recognized")
    yield from _first(
        "stored twice, read once: ",
        [
            f"{duplicate['key'].removesuffix(VARIABLE_SUFFIX)} is "
            f"{duplicate['of'].removesuffix(VARIABLE_SUFFIX)}"
            for duplicate in document["duplicates"]
        ],
    )
    yield from _first("note: ", document["notes"])
    yield from _first("note: ", _table_notes(document))
    yield from _first(
        "not exported: ",
        [f"{rejected['name']}: {rejected['reason']}" for rejected in document["rejected"]],
    )
    if document["slots"]:
        count = count_text(len(document["slots"]), "optimizer variable")
        yield Text(f"left out: {count}, which saves {size_text(document['slot_bytes'])}")

    # Variables that might be tables are among the dense ones, and are listed on their own.
    by_key = {variable["key"]: variable for variable in document["dense"]}
    candidates = [by_key.pop(key) for key in document["candidates"]]
    dense_variables = sorted(
        by_key.values(), key=lambda variable: (-variable["bytes"], variable["key"])
    )
    yield from _variables(
        f"might be tables ({len(candidates)}); --table NAME=KEY names one", candidates
    )
    yield from _variables(f"other variables ({len(dense_variables)})", dense_variables)


def _first(prefix: str, texts: Sequence[str]) -> Iterator[Text]:
    """Yields the first lines of one kind, and a line with the number of the omitted ones."""
    for text in texts[:LINES_SHOWN]:
        yield Text(prefix + text)
    omitted_count = len(texts) - LINES_SHOWN
    if omitted_count > 0:
        yield Text(f"... and {omitted_count} more; --json lists all")


def _variables(title: str, variables: Sequence[Document]) -> Iterator[RenderableType]:
    if not variables:
        return
    if len(variables) > LINES_SHOWN:
        title += f", the first {LINES_SHOWN}; --json lists all"
    # A title of the table itself would be broken at the table's width.
    yield Text(title)
    rows = (
        (variable["name"], str(list(variable["shape"])), variable["dtype"], _size(variable))
        for variable in variables[:LINES_SHOWN]
    )
    yield _rows("", ("variable", "shape", "dtype", "size"), rows)


def _size(content: Document) -> str:
    return size_text(content["bytes"])


def _layout(table: Document) -> str:
    """Returns a table's layout for reading, e.g. `sparse core 8 x 240, offset 128, rotation 4`."""
    layout = table["layout"]
    match layout["kind"]:
        case "sparse_core":
            text = f"sparse core {layout['cores']} x {layout['core_rows']}"
            if layout["offset"] or layout["rotation"]:
                text += f", offset {layout['offset']}, rotation {layout['rotation']}"
            return text
        case "mod":
            return f"mod {len(layout['starts'])}"
        case kind:
            return str(kind)


def _slices(table: Document) -> str:
    # Only `inspect` counts files.
    if table.get("files", 1) > 1:
        return f"{table['slices']} in {table['files']} files"
    return str(table["slices"])


def _segments(table: Document) -> str:
    if table["linked"]:
        return f"{table['segments']}, linked"
    return str(table["segments"])


_COLUMNS: dict[str, tuple[str, Callable[[Document], str]]] = {
    "rows": ("rows", lambda table: thousands(table["rows"])),
    "dim": ("dim", lambda table: str(table["dim"])),
    "dtype": ("dtype", lambda table: str(table["dtype"])),
    "bytes": ("size", _size),
    "layout": ("layout", _layout),
    "slices": ("slices", _slices),
    "segments": ("segments", _segments),
    "slots": ("slots", lambda table: ", ".join(table["slots"])),
    "origin": ("origin", lambda table: str(table["origin"])),
}
"""By a fact of tables: its heading, and how it is written. Documents differ in the facts."""


def _tables(title: str, tables: Document) -> Table:
    """Returns the largest tables, in the order of their names."""
    names = list(tables)
    if len(names) > TABLES_SHOWN:
        title = f"{title} ({len(names)}), the largest; --json lists all"
        names = sorted(names, key=lambda name: -tables[name]["bytes"])[:TABLES_SHOWN]
    columns = [column for fact, column in _COLUMNS.items() if fact in tables[names[0]]]
    rows = (
        (name, *(write(tables[name]) for _, write in columns))
        for name in sorted(names, key=natural)
    )
    return _rows(title, ("table", *(heading for heading, _ in columns)), rows)


def _table_notes(document: Document) -> list[str]:
    return [
        f"table {name}: {table['note']}"
        for name, table in document["tables"].items()
        if table.get("note")
    ]


def _rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Returns a table; long names are folded, never cut."""
    table = Table(
        *(Column(name, overflow="fold") for name in columns),
        title=escape(title),
        title_justify="left",
        box=SIMPLE,
    )
    for cells in rows:
        # Names come from the model and the checkpoint, and rich would take brackets for styles.
        table.add_row(*map(escape, cells))
    return table


def _plan(document: Document) -> Iterator[RenderableType]:
    """Yields a plan: the tables, notes, and the bytes, tasks and memory that it takes."""
    # A model may read all its rows inside the towers.
    if document["tables"]:
        yield _tables("plan", document["tables"])
    # Of a self-contained SavedModel.
    if "signatures" in document:
        rows = (
            # An input may be sent as several tensors.
            (
                name,
                ", ".join(chain.from_iterable(signature["inputs"].values())),
                ", ".join(signature["outputs"]),
            )
            for name, signature in document["signatures"].items()
        )
        yield _rows("signatures", ("signature", "takes", "gives"), rows)
    for note in (*document["notes"], *_table_notes(document)):
        yield Text(f"note: {note}")
    yield Text(_totals(document))
    if "shards" in document:
        rows = (
            (shard["shard"], size_text(shard["table_bytes"]), size_text(shard["index_bytes"]))
            for shard in document["shards"]
        )
        yield _rows("shards", ("shard", "tables", "indexes, at most"), rows)
    # The destination comes last, where a reader of a long report looks.
    if "destination" in document:
        destination = document["destination"]
        staged_in = document.get("staged_in", destination)
        # A bundle for a store is staged on a disk.
        if not destination.startswith(staged_in):
            destination += f", staged in {staged_in} until it is sent"
        yield Text(f"to be written: {destination}")


def _totals(document: Document) -> str:
    """Returns the line about the bytes, tasks and memory of a plan."""
    read = size_text(document["read_bytes"])
    written_bytes = document["written_bytes"]
    moved = f"{read} read, {size_text(written_bytes)} written"
    if document.get("data") == "linked":
        moved += ", data files linked"
    # A bundle for a store is sent, and removed here, while it is written.
    if document.get("local_bytes", written_bytes) < written_bytes:
        local = size_text(document["local_bytes"])
        moved += f" (at most {local} on the local disk at a time)"
    if document.get("linked_bytes"):
        moved += f", {size_text(document['linked_bytes'])} linked"
    if document.get("older_version") is not None:
        moved += f" but for rows that equal those of version {document['older_version']}"
    text = (
        f"{moved}, {count_text(document['files'], 'file')}, "
        f"{count_text(document['tasks'], 'task')} on {count_text(document['workers'], 'worker')} "
        f"with at most {size_text(document['peak_memory_bytes'])} of memory"
    )
    if document["left_out_bytes"]:
        text += f"; {size_text(document['left_out_bytes'])} of slot variables left out"
    if "load_bytes" in document:
        text += (
            f"; a server, and the proof, hold {size_text(document['load_bytes'])} of tables while "
            "they load"
        )
    return text


def _rejected_ids(document: Document) -> Text:
    """Returns which inputs reject unknown ids, and what the recipe can do about it."""
    remedy = "the model itself has no vector for it"
    if can_state := document["can_state_unknown_ids"]:
        remedy = (
            f"state what such an id reads as features.{can_state[0]}.unknown, or nothing if that "
            "is right"
        )
    inputs = ", ".join(document["rejects_unknown_ids"])
    return Text(f"a request with an unknown id fails in {inputs}: {remedy}")


def _verification(document: Document) -> Iterator[RenderableType]:
    """Yields the report of a bundle or SavedModel that was published, or verified again."""
    # The report of `verify` is about nothing else.
    verification = document.get("verification", document)
    title = f"{document['model']} version {document['version']}"
    checks = (
        _file_checks(document),
        _table_checks(document),
        _tower_checks(document),
        _signature_checks(document),
        _index_checks(document),
        _opened_parts(document),
    )
    yield _rows(title, ("checked", "against", "result"), chain.from_iterable(checks))
    notes = [*document.get("notes", ()), verification.get("note")]
    # They change no result, because nothing reads them.
    notes += [f"{path} is no part of the bundle" for path in document.get("unlisted", ())]
    if document.get("signature_verified"):
        notes.append("one of the keys has signed every byte")
    for note in filter(None, notes):
        yield Text(f"note: {note}")
    if document.get("rejects_unknown_ids"):
        yield _rejected_ids(document)

    when = ""
    if "opened" in document:
        yield Text(f"{document['bundle']} is whole")
        when = " at its export"
    else:
        size = f"{size_text(document['table_bytes'])} of tables"
        if document.get("linked_bytes"):
            size += f", {size_text(document['linked_bytes'])} of it linked"
        if document.get("reused", {}).get("bytes"):
            reused = document["reused"]
            whole = count_text(reused["segments"], "whole segment")
            size += f", {size_text(reused['bytes'])} of it shared with older versions, {whole}"
            written = size_text(reused["written_bytes"])
            if reused["changed_rows"]:
                written += f" with {count_text(reused['changed_rows'], 'changed row')}"
            size += f", {written} written"
        # A bundle says by its bytes what is linked, a SavedModel has either kind.
        if "data" in document:
            size += f", {document['data']}"
        location = document.get("bundle") or f"SavedModel {document['saved_model']}"
        yield Text(f"published {location} ({size})")
    # What no check verified, each with the reason or the remedy.
    if verification["unverified"]:
        yield Text(f"not verified{when}: {'; '.join(verification['unverified'])}")


def _file_checks(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yields the files that `verify` read."""
    if "files" in document:
        size = f"{count_text(document['files'], 'file')}, {size_text(document['bytes'])}"
        yield "checksums", "the manifest", f"{size}: every byte as committed"


def _table_checks(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yields the tables whose rows were compared."""
    checks = document.get("verification", document).get("tables", {})
    # In the order that people expect: t2 before t10.
    names = sorted(checks, key=natural)
    for name in names[:TABLES_SHOWN]:
        error = document["table_errors"].get(name)
        check = TableCheck.model_validate(checks[name])
        yield f"table {name}", "the checkpoint", _compared_rows(check, error)
        if error is not None:
            difference = (
                f"difference: largest {error['max_abs']:.2g}, rms {error['rms']:.2g}, cosine >= "
                f"{error['cosine_min']:.5f}"
            )
            yield f"table {name}", f"its {error['source_dtype']} values", difference
    if len(names) > TABLES_SHOWN:
        omitted_count = len(names) - TABLES_SHOWN
        yield f"{omitted_count} more tables", "the checkpoint", "listed with --json"


def _tower_checks(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yields the forms of towers whose outputs were compared."""
    verification = document.get("verification", {})
    # Converted tables change outputs, whatever the form of the tower.
    for name, effects in verification.get("table_effect", {}).items():
        yield f"tower {name}", "itself on the checkpoint's rows", _largest(effects)
    for name, forms in document.get("max_abs_error", {}).items():
        hostile_count = verification["hostile_examples"].get(name, 0)
        for form, errors in forms.items():
            title = f"tower {name}, {form}"
            against = f"the original model, {verification['examples']} examples"
            yield title, against, _largest(errors)
            # The SavedModel in f32 is what other forms are compared with.
            if hostile_count and form != "saved_model f32":
                hostile = f"the SavedModel, {thousands(hostile_count)} hostile numbers"
                yield title, hostile, "no difference but rounding"


def _signature_checks(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yields the signatures of a self-contained SavedModel."""
    verification = document.get("verification", {})
    # A table that does not fit into memory is replaced by the rows of the examples.
    loader = " and ".join(verification.get("loaded_by", ())) or "the rows of the examples"
    for name, errors in verification.get("max_abs_error", {}).items():
        against = f"the original model, {verification['examples']} examples, by {loader}"
        yield f"signature {name}", against, _largest(errors)
    # In capitals, so that nobody overlooks it among the proofs.
    if not verification.get("proved", True):
        yield "all signatures", "the original model", "NOT COMPARED (--unproved)"


def _index_checks(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yields the indexes and stages of a bundle, by their recall."""
    for name, index in document.get("indexes", {}).items():
        title = f"index {name}, {index['kind']}{partitions_text(index['partitions'])}"
        recall = document["recall"][name]
        kind = _kind("queries", recall)
        count = recall["queries"] + recall["chosen_on"]
        share = str(count)
        if recall["chosen_on"]:
            # The setting was chosen on the other queries.
            share = f"{recall['queries']} of {count}"
        result = f"{_recall(recall)}; target {recall['target']}"
        yield title, f"exact search, {share} {kind}", result
        for depth in index["depths"]:
            result = f"recall@{depth['k']} {depth['recall']:.4f}"
            yield title, f"exact search, {count} {kind}", result
        of_tables = document["recall_of_tables"].get(name)
        if of_tables is not None:
            yield title, "exact search on the checkpoint's rows", _recall(of_tables)
        cold_users = document["recall_of_cold_users"].get(name)
        if cold_users is not None:
            against = f"exact search, {cold_users['queries']} queries of cold users"
            yield title, against, _recall(cold_users)
    for name, stage in document.get("stages", {}).items():
        for index_name, recall in stage["recall"].items():
            contexts = f"{recall['contexts']} {_kind('contexts', recall)}"
            against = f"the best of {name}, index {index_name}, {contexts}"
            result = f"{_recall(recall)} in pools of {recall['pool_size']}"
            yield f"stage {stage['tower']}, keeps {stage['keep']}", against, result


def _opened_parts(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yields the parts of a bundle that `verify` used."""
    for part in document.get("opened", ()):
        yield part, "", "opens and can be used"
    # Without a recipe, it calls no model.
    model_check = document.get("model_check")
    if model_check:
        against = f"the original model, {model_check['examples']} examples"
        yield "towers and candidates", against, "as the original model"
        for name, recall in model_check["recall"].items():
            yield f"index {name}", "exact search", f"recall {recall:.4f}"


_BY_STATED_LAYOUT = {
    "derived": ", by the layout that was derived from ids of training",
    "trained_ids": ", by its stated layout, which ids of training prove",
    "accepted": ", if its stated layout is right: not verified",
    "expected": ", by its stated layout, which recorded outputs agree with",
}
"""The clause about the layout of a table, by how it is known."""


def _compared_rows(check: TableCheck, error: Document | None) -> str:
    """Returns the result of comparing a table with the checkpoint.

    Args:
      check: What was compared.
      error: How its rows differ if they were converted.
    """
    # A sample of a linked table would compare the checkpoint with itself.
    if not check.rows_compared:
        return "linked, not verified: --full sums its rows"
    text = f"{thousands(check.rows_compared)} of {thousands(check.rows)} rows equal bit for bit"
    if error is not None:
        text = text.replace("equal bit for bit", f"right as {error['dtype']}")
    text += _BY_STATED_LAYOUT.get(check.stated_layout or "", "")
    if check.trained_ids is not None:
        text += f"; {trained_ids_text(check.trained_ids)}"
    padding = check.padding
    if padding is not None and not padding.rows:
        text += "; no padding could contradict it"
    elif padding is not None:
        text += f"; compared with {count_text(padding.rows, 'padding row')}"
        if padding.slots:
            text += f" and their {', '.join(padding.slots)}"
    # The library decoded the rows for the copy, and for the comparison.
    if check.decoder is not None:
        text += f"; placement checked, decoding trusted to {check.decoder}"
    return text


def _largest(errors: dict[str, float]) -> str:
    return f"largest difference {max(errors.values(), default=0.0):.2g}"


def _kind(noun: str, recall: dict[str, Any]) -> str:
    if recall["representative"]:
        return noun
    return f"synthetic {noun}: not representative"


def _recall(recall: dict[str, Any]) -> str:
    return f"recall@{recall['k']} {recall['value']:.4f} (at least {recall['low']:.4f})"
