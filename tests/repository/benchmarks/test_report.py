"""The page and the tables that a run writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import BEGIN, END, OVERLOAD, Sheet, document

SERVICE = ("request", "callers", "requests/s", "p50 ms", "p99 ms", "CPU ms")
PEERS = (
    "peer",
    *("requests/s, 8 callers", "requests/s, 32 callers"),
    "rowcast f32 by it, each at its best",
    "CPU ms",
    *("p50 / p99 ms, 8", "p50 / p99 ms, 32"),
    *("s to ready", "PSS MiB", "scores"),
)
SHEETS = [
    Sheet(
        "Service, 2 workers",
        SERVICE,
        [
            (request, callers, rate, "1.0", "2.0", "0.5")
            for request in ("R f32, HTTP JSON", "R int8, HTTP JSON", "Q, HTTP JSON")
            for callers, rate in (("8", "600"), ("32", "500"))
        ],
    ),
    Sheet(
        "Bare tower and bare search, in process",
        ("request", "callers", "threads", "requests/s", "bare calls/s", "share", "CPU ms beyond"),
        [
            ("R f32, HTTP protobuf", "8", "2", "600", "700", "0.86", "0.1"),
            ("R int8, HTTP protobuf", "8", "2", "900", "1200", "0.75", "0.1"),
        ],
    ),
    Sheet("Error of int8 on R, by f32", ("mean error", "maximum"), [("0.01", "0.02")]),
    Sheet(
        "Peers on R, over HTTP",
        PEERS,
        [
            (
                "FastAPI",
                "300",
                "400",
                "1.50",
                "2.5",
                "3.0 / 4.0",
                "5.0 / 6.0",
                "3.1",
                "600",
                "equal",
            ),
            (
                "FastAPI, two",
                "500",
                "450",
                "1.20",
                "2.6",
                "7.0 / 8.0",
                "9.0 / 9.5",
                "3.2",
                "900",
                "equal",
            ),
        ],
    ),
    Sheet("Overload", tuple(OVERLOAD), [("2 x", "1000", "0.96", "20", "3.0", "0.1")]),
    Sheet(
        "Start and memory, f32, R and Q loaded",
        ("service", "workers", "s to ready", "PSS MiB, idle", "PSS MiB, after requests"),
        [("this", "1", "0.8", "170", "250"), ("this", "2", "1.2", "300", "409")],
    ),
    Sheet(
        "Client beside bare calls, CPU of the caller",
        ("call", "CPU ms", "by gRPC, bare stub", "by HTTP, bare httpx, JSON"),
        [
            ("gRPC, rowcast-client", "0.2", "1.25", ""),
            ("HTTP, rowcast-client", "0.2", "", "0.60"),
        ],
    ),
]


def test_document_writes_all_tables_and_a_summary_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    results = tmp_path / "results"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    document("2026-01-02, commit abc.", SHEETS, page, results)
    tables = (results / "2026-01-02.md").read_text()
    assert all(f"\n### {sheet.title}\n" in tables for sheet in SHEETS)
    targets = tables.partition("###")[0]
    share = "R f32, HTTP protobuf, 8 callers: share of the bare call"
    assert f"| {share} | at least 0.88 | 0.86 | missed |" in targets
    assert "| R int8, HTTP protobuf, 8 callers: share of the bare call | at least 0.7 | 0.75 |" in (
        targets
    )
    assert "times the requests/s of FastAPI, two | at least 1.3 | 1.20 | missed |" in targets

    assert "| gRPC, rowcast-client: CPU by gRPC, bare stub | at most 1.3 | 1.25 | met |" in targets

    text = page.read_text()
    assert "| HTTP, rowcast-client | 0.2 |  | 0.60 |" in text
    assert text.startswith(f"before\n{BEGIN}\n2026-01-02, commit abc.\n\n## Ranking beside")
    assert text.endswith(f"{END}\nafter\n")
    # The better of the two ways to run FastAPI, at its better number of callers.
    assert 'x-axis ["rowcast", "rowcast int8", "FastAPI"]' in text
    assert "bar [600, 600, 500]" in text
    assert "| FastAPI | 32 | 400 | 5.0 / 6.0 | 2.5 | 3.1 | 600 | 1.50 |" in text
    assert "| 0.01 | 0.02 |" in text
    assert "target" not in text


def test_document_needs_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="marks"):
        document("2026-01-02", SHEETS, page, tmp_path)
