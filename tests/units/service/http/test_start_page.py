"""The page at `/`: who gets it, and what a person does with it in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import rowcast_client

from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S
from tests.units.service.http.browser import PROGRAM, Page, open_browser
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = ("/start_page.css", "/start_page.js")
MARKUP = "<script>alert('it\\'s')</script><b>Film</b>"
TOKEN = "secret-of-a-person"
in_browser = pytest.mark.skipif(PROGRAM is None, reason="needs a browser (Debian: chromium)")


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers, title=MARKUP)
    running = RunningService(root)
    yield running
    running.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"person {TOKEN}\nreader {TOKEN}-of-movies movies\n")
    return path


def open_page(page: Page, url: str) -> None:
    page.resize(1200)
    page.open(url)
    wait_for_form(page)


def wait_for_form(page: Page) -> None:
    page.wait_for("document.querySelector('#send')?.checkVisibility()")


def send(page: Page) -> None:
    page.click("#send")
    page.wait_for("!/Nothing|Waiting/.test(document.querySelector('#summary').textContent)")


def rows_of(page: Page, table: str) -> list[dict[str, str]]:
    """Returns the rows of a table, as the texts below its heads."""
    cells = page.evaluate(
        f"""[...document.querySelectorAll("{table} tr")].map((row) =>
          [...row.cells].map((cell) => cell.innerText))"""
    )
    heads, *rows = cells
    return [dict(zip(heads, row, strict=True)) for row in rows]


def shown_rows_are_those_of(page: Page, url: str, body: dict[str, Any]) -> None:
    response = httpx.post(f"{url}/v1/models/movies:recommend", json=body, verify=False).json()
    titles = response["attributes"]["title"]
    scores = [f"{score:.4f}" for score in response["scores"]]
    rows = rows_of(page, "#rows")
    assert [(row["title"], row["score"]) for row in rows] == [*zip(titles, scores, strict=True)]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_browser_gets_the_page_and_its_files(http: httpx.Client, method: str) -> None:
    types = {"/": "text/html", "/start_page.css": "text/css", "/start_page.js": "text/javascript"}
    for path, media_type in types.items():
        response = http.request(method, path, headers=BROWSER).raise_for_status()
        assert response.headers["content-type"].startswith(media_type)
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert (response.content == b"") == (method == "HEAD")


def test_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    links = re.findall(r"""(?:src|href)=["']([^"']+)["']""", http.get("/", headers=BROWSER).text)
    links = [link for link in links if not link.startswith("data:")]
    assert {"docs", "metrics", *[file[1:] for file in FILES]} == {*links}


def test_only_the_page_is_open_where_tokens_are_required(
    serve: Serve, root: Path, small_towers: Path, tokens: Path
) -> None:
    write_small_bundle(root, small_towers)
    with httpx.Client(
        base_url=serve(tokens=tokens).http, headers=BROWSER, timeout=WAIT_S, verify=False
    ) as client:
        for path in ("/", *FILES):
            content = client.get(path).raise_for_status().text
            assert "movies" not in content
        for path in ("/docs", "/openapi.json", "/metrics", "/v1/models"):
            assert client.get(path).status_code == 401
        assert client.post("/").status_code == 401
        assert client.get("/", headers={"accept": "*/*"}).status_code == 401


def test_service_without_web_pages_serves_calls_alone(
    serve: Serve, root: Path, small_towers: Path
) -> None:
    write_small_bundle(root, small_towers)
    service = serve(web_pages=False)
    with httpx.Client(
        base_url=service.http, headers=BROWSER, timeout=WAIT_S, verify=False
    ) as client:
        for path in ("/", *FILES, "/docs", "/docs/assets/swagger-ui.css", "/openapi.json"):
            response = client.get(path)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (404, "NOT_FOUND")
            assert "/docs lists" not in response.text
        for path in ("/v1/models", "/v1/models/movies", "/metrics", "/readyz"):
            client.get(path).raise_for_status()
        body = {"context": {"user": 3, "history": [1000]}}
        client.post("/v1/models/movies:retrieve", json=body).raise_for_status()


def test_page_that_is_not_served_is_not_open(serve: Serve, tokens: Path) -> None:
    service = serve(tokens=tokens, web_pages=False)
    with httpx.Client(
        base_url=service.http, headers=BROWSER, timeout=WAIT_S, verify=False
    ) as client:
        for path in ("/", *FILES):
            assert client.get(path).status_code == 401
            authorization = {"authorization": f"Bearer {TOKEN}"}
            assert client.get(path, headers=authorization).status_code == 404


@in_browser
def test_form_sends_what_a_person_writes_and_shows_titles_and_scores(
    service: RunningService, page: Page
) -> None:
    open_page(page, service.http)
    assert page.text("#health") == "Ready"
    assert rows_of(page, "table:has(#models)") == [
        {"Model": "movies", "Version": "1", "State": "available · current"}
    ]
    page.fill("user", "3")
    page.fill("history", "1000, 1007")
    page.fill("liked", '{"ids": [1021], "weights": [0.5]}')
    page.fill("recent", "")
    page.fill("k", "5")
    page.fill("Further options", '{"exclude_ids": [1014]}')
    send(page)
    context = {"user": 3, "history": [1000, 1007], "liked": {"ids": [1021], "weights": [0.5]}}
    context |= {"city": 1, "hour": 1, "mood": [1, 1]}
    body = {"k": 5, "context": context, "attributes": ["title"], "exclude_ids": [1014]}
    shown_rows_are_those_of(page, service.http, body)
    assert page.problems == []


@in_browser
def test_enter_in_a_field_sends_the_request(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    page.fill("k", "2")
    page.press("Enter")
    page.wait_for("document.querySelector('#rows table')")
    assert len(rows_of(page, "#rows")) == 2


@in_browser
def test_titles_with_markup_are_shown_as_text(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    send(page)
    assert all(row["title"].startswith(MARKUP) for row in rows_of(page, "#rows"))
    assert page.evaluate("document.querySelectorAll('#rows script, #rows b').length") == 0
    assert page.problems == []


@in_browser
def test_every_call_of_the_model_gets_a_response(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    calls = ["Recommend", "Retrieve", "Rank", "Embed", "Look up"]
    assert page.text("#calls").splitlines() == ["Call", *calls]
    for position in range(1, len(calls) + 1):
        page.click(f"#calls label:nth-of-type({position}) input")
        send(page)
        assert page.text("#request-problem") == ""
        assert page.text("#summary").startswith("movies, version 1")
    assert page.problems == []


@in_browser
def test_printed_requests_return_what_the_page_shows(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    page.fill("city", "it's")
    send(page)
    ids = [int(row["id"]) for row in rows_of(page, "#rows")]
    if shutil.which("curl") is not None:
        command = page.text("#curl")
        printed = subprocess.run(["sh", "-c", command], check=True, capture_output=True).stdout
        assert json.loads(printed)["ids"] == ids
    program = page.text("#python")
    variables = {**os.environ, "PYTHONPATH": str(Path(rowcast_client.__file__).parents[1])}
    command_line = [
        sys.executable,
        "-c",
        program.replace("print(result)", "print(result[0].ids.tolist())"),
    ]
    printed = subprocess.run(command_line, check=True, capture_output=True, env=variables).stdout
    assert printed.decode().strip() == str(ids)


@in_browser
def test_fields_that_the_service_rejects_say_why(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    page.fill("user", "seven")
    send(page)
    assert page.text(".field:has([aria-invalid=true])").splitlines()[:2] == ["user", "int64"]
    assert "'seven' was sent; an integer" in page.text(".field:has([aria-invalid=true])")
    assert "context.user" in page.text("#request-problem")
    assert page.evaluate("document.activeElement.labels[0].firstChild.textContent") == "user"
    page.fill("user", "7")
    page.fill("Further options", '{"atributes": []}')
    send(page)
    assert "did you mean 'attributes'?" in page.text("#request-problem")
    page.fill("Further options", "{")
    assert "not valid JSON" in page.text(".field:has([aria-invalid=true])")
    for text in ("[1]", '"k"', "5", "null"):
        page.fill("Further options", text)
        assert "A JSON object is expected" in page.text(".field:has([aria-invalid=true])")


@in_browser
def test_narrow_page_is_not_wider_than_the_screen(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    page.resize(390)
    for position in range(1, 6):
        page.click(f"#calls label:nth-of-type({position}) input")
        send(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390


@in_browser
def test_every_control_has_a_name(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    page.send("Accessibility.enable")
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    controls = {"textbox", "button", "radio", "link", "region", "table"}
    unnamed = [
        node
        for node in nodes
        if node.get("role", {}).get("value") in controls - {"table"}
        and not node.get("name", {}).get("value")
    ]
    assert unnamed == []
    roles = {node.get("role", {}).get("value") for node in nodes}
    assert {"banner", "navigation", "main", "heading", "status"} | controls <= roles


@in_browser
def test_live_part_shows_the_requests_of_the_model(service: RunningService, page: Page) -> None:
    open_page(page, service.http)
    send(page)
    page.wait_for("document.querySelector('#latency').innerText.includes('in the last minute')")
    recommend = rows_of(page, "#latency")[0]
    assert recommend["Call"] == "Recommend"
    assert int(recommend["Requests"]) >= 1
    assert recommend["99 % within"].endswith("s")
    assert page.text("#recall") == "Recall of the index movies: 1, as its search is exact."


@in_browser
def test_new_version_appears_and_an_older_one_can_be_chosen(
    serve: Serve, root: Path, small_towers: Path, page: Page
) -> None:
    write_small_bundle(root, small_towers)
    service = serve(latest_versions=2)
    open_page(page, service.http)
    page.fill("user", "3")
    write_small_bundle(root, small_towers, version=2)
    # Damaged from the beginning: a scan could load what is damaged later.
    (root / "movies" / "3").mkdir()
    (root / "movies" / "3" / "manifest.json").write_text("{}")
    page.wait_for("document.querySelectorAll('#models tr').length === 3")
    page.wait_for("document.querySelector('#curl').textContent.includes('/versions/1:')")
    newest, second, first = rows_of(page, "table:has(#models)")
    assert newest["State"].startswith("failed")
    assert second["State"] == "available · current"
    assert first["State"] == "available"
    # What a person has written stays.
    send(page)
    assert page.text("#summary").startswith("movies, version 1")
    assert '"user": 3' in page.text("#curl")
    page.click("[id='movies/2']")
    page.wait_for("!document.querySelector('#curl').textContent.includes('/versions/')")
    send(page)
    assert page.text("#summary").startswith("movies, version 2")
    assert page.problems == []


@in_browser
@pytest.mark.parametrize(
    ("token", "models"), [(TOKEN, ["movies", "others"]), (f"{TOKEN}-of-movies", ["movies"])]
)
def test_page_has_a_field_for_a_token_and_keeps_it_in_memory(
    token: str,
    models: list[str],
    serve: Serve,
    root: Path,
    small_towers: Path,
    tokens: Path,
    page: Page,
) -> None:
    write_small_bundle(root, small_towers)
    write_small_bundle(root, small_towers, model="others")
    service = serve(tokens=tokens)
    page.open(service.http)
    page.wait_for("document.querySelector('#token-form')?.checkVisibility()")
    assert not page.evaluate("document.querySelector('main').checkVisibility()")
    page.fill("Token", "wrong")
    page.press("Enter")
    page.wait_for("document.querySelector('#token-problem').textContent")
    page.fill("Token", token)
    page.press("Enter")
    wait_for_form(page)
    assert [row["Model"] for row in rows_of(page, "table:has(#models)")] == models
    send(page)
    assert len(rows_of(page, "#rows")) == 3
    assert token not in page.evaluate("document.documentElement.outerHTML")
    stored = "[location.href, document.cookie, localStorage.length, sessionStorage.length]"
    assert page.evaluate(stored) == [f"{service.http}/", "", 0, 0]
    variables = {**os.environ, "TOKEN": token}
    command = page.text("#curl")
    if shutil.which("curl") is not None:
        printed = subprocess.run(
            ["sh", "-c", command], check=True, capture_output=True, env=variables
        ).stdout
        assert len(json.loads(printed)["ids"]) == 3


@in_browser
def test_page_of_a_service_without_models_says_so(serve: Serve, root: Path, page: Page) -> None:
    page.open(serve().http)
    page.wait_for("document.querySelector('#no-models')?.checkVisibility()")
    assert not page.evaluate("document.querySelector('#request').checkVisibility()")
    assert page.text("#health").startswith("Not ready")
