"""Every example of the documentation works as written, on the bundle of the quick start."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter
from rowcast_client.stubs import embedding_service_pb2, embedding_service_pb2_grpc

from bundle.format import manifest, paths
from bundle.format.features import Feature
from bundle.format.ids import IdRule
from export.recipe.schema import ExportJob, read_recipe
from service.codec.operations import OPERATIONS
from tests.e2e.process import WAIT_S, Process, until
from tests.repository.docs.blocks import BLOCKS, ROOT, Block, marked

pytestmark = pytest.mark.slow

BUNDLES = ROOT / "examples/quickstart/bundles"
SEVERAL = "with versions 5 to 9"
BODIES = marked(r"example: (?:GET|POST) .+")
ON_THE_SERVICE = marked("example: (?:python|sh)")
PYTHON = [block for block in ON_THE_SERVICE if block.language == "python"]
SHELL = [block for block in ON_THE_SERVICE if block.language == "sh"]
TESTED_LANGUAGES = ("json", "python", "sh", "toml")
FORMS = re.compile(
    r"example: (?:GET|POST) /\S+(?: as \w+)?|response(?: to \w+)?"
    r"|example: python|example: sh(?:, with versions 5 to 9)?|printed(?:, as JSON)?"
    r"|example: features|example: id rule"
    r"|example: recipe(?:, (?:added to|changes) \S+)?"
    r"|example: gRPC service config|example: state file, with versions 5 to 9"
    r"|not run: .+"
    r"|sent to the demo's service|run on the demo's files"  # scripts/try_readme
)
RECIPE = """
model = "movies"
checkpoint = { path = "checkpoint" }
code = { factory = "model.py:build_model" }
inputs = { user_id = { dtype = "int64" } }
output = { root = "bundles" }
[towers.query]
role = "query"
"""


@dataclass(frozen=True)
class Service:
    """A running service and the directory that shell blocks run in."""

    process: Process
    directory: Path

    def at_its_ports(self, text: str) -> str:
        """Returns an example with the service's ports in place of the default ones."""
        ports = self.process.ports
        for number, name in (("8080", "http"), ("9090", "grpc"), ("8090", "admin")):
            text = re.sub(rf"(?:localhost|127\.0\.0\.1):{number}", f"127.0.0.1:{ports[name]}", text)
        return text

    def run(self, lines: str) -> subprocess.CompletedProcess[str]:
        """Runs lines of a page in a shell that ends at the first failure."""
        ports = self.process.ports
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("ROWCAST_")
        }
        environment = kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ROWCAST_CLIENT_URL": f"http://127.0.0.1:{ports['http']}",
            "ROWCAST_CTL_ADMIN": f"http://127.0.0.1:{ports['admin']}",
            "no_proxy": "127.0.0.1",
        }
        without_folders = re.sub(r"(?<!\S)\S*\.?venv/bin/", "", self.at_its_ports(lines))
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", without_folders],
            cwd=self.directory,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serves the bundle of the quick start, beside the files that examples name."""
    directory = tmp_path_factory.mktemp("pages")
    (directory / "examples").symlink_to(ROOT / "examples")
    users = {"user_id": [5, 6], "history": [[1, 2], []], "hour": [20, 9], "seen": [[1, 2], [47]]}
    pq.write_table(pa.table(users), directory / "users.parquet")
    (directory / "bundles").symlink_to(BUNDLES)  # the ports file is written beside it
    yield from running(directory)


@pytest.fixture(scope="module")
def several_versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serves versions 5 to 9 of the model of the quick start, which are equal but for
    their number.
    """
    directory = tmp_path_factory.mktemp("versions")
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "recalled.txt").write_text("1021\n1022\n")
    original = BUNDLES / "movielens/1"
    entry = manifest.parse((original / paths.MANIFEST).read_bytes())
    for version in range(5, 10):
        copy = directory / "bundles/movielens" / str(version)
        shutil.copytree(original, copy)
        numbered = manifest.dump(entry.model_copy(update={"version": version}))
        (copy / paths.MANIFEST).write_bytes(numbered)
    yield from running(directory)


def running(directory: Path) -> Iterator[Service]:
    options = ("--state-file", str(directory / "state.json"), "--admin-port", "0")
    protocols = ("--protocols", "tensorflow-serving,open-inference")
    process = Process(directory / "bundles", *options, *protocols, directory=directory)
    try:
        process.event("ready")
        yield Service(process, directory)
    finally:
        process.kill()


def test_blocks_are_marked_as_tests_repository_docs_blocks_describes() -> None:
    unmarked = []
    for block in BLOCKS:
        if block.language not in TESTED_LANGUAGES:
            continue
        # Tests in tests/e2e run the pages of a first model.
        if block.page.startswith("docs/tutorials/first-"):
            is_marked = block.marker in {"data.py", "model.py", "train.py", "recipe.toml", "ask.py"}
        elif block.marker.startswith("run by "):
            is_marked = (ROOT / block.marker.removeprefix("run by ")).is_file()
        else:
            is_marked = FORMS.fullmatch(block.marker) is not None
        if not is_marked:
            unmarked.append(str(block))
    assert unmarked == []


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("docs/tutorials/first-*.md")), ids=lambda p: p.stem
)
def test_tutorial_names_each_file_where_readers_see_it(page: Path) -> None:
    text = page.read_text()
    for name in ("model.py", "train.py", "recipe.toml", "ask.py"):
        assert f"`{name}`:\n\n<!-- {name} -->\n```" in text


def test_api_page_shows_a_body_of_each_call() -> None:
    output = {block.marker.split(":")[2].split()[0] for block in BODIES}
    assert output == {"retrieve", "rank", "recommend", "embed", "lookup"}


@pytest.mark.parametrize("block", BODIES, ids=str)
def test_body_returns_the_response_that_the_page_shows(block: Block, service: Service) -> None:
    method, path, *name = block.marker.removeprefix("example: ").split()
    with httpx.Client(
        base_url=service.at_its_ports("http://localhost:8080"), verify=False
    ) as client:
        headers = {"content-type": "application/json"}
        response = client.request(method, path, content=block.text, headers=headers)
    assert response.status_code == 200, response.text
    output = response_to(block, name[-1] if name else "")
    if output is not None:
        assert_equal(output, response.json())


def test_examples_of_the_openapi_document_are_served(service: Service) -> None:
    with httpx.Client(
        base_url=service.at_its_ports("http://localhost:8080"), timeout=WAIT_S, verify=False
    ) as client:
        document = client.get("/openapi.json").json()
        calls = {
            path: each["post"]
            for path, each in document["paths"].items()
            if "post" in each
            and each["post"]["tags"] != ["changes"]
            and "{label}" not in path  # the bundle has no labels
        }
        assert len(calls) == 2 * len(OPERATIONS)
        for path, call in calls.items():
            content = call["requestBody"]["content"]["application/json"]
            schema = content["schema"]
            if "$ref" in schema:
                schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            assert schema["examples"]
            of_model = content["examples"]["movielens"]["value"]
            for example in [*schema["examples"], of_model]:
                url = path.format(model="movielens", version=1)
                response = client.post(url, json=example)
                assert response.status_code == 200, (path, response.text)


def response_to(block: Block, name: str) -> Any:
    """Returns the response that a page shows to a body; None if it shows none."""
    if name:
        named = [each for each in marked(f"response to {name}") if each.page == block.page]
        assert len(named) == 1
        return json.loads(named[0].text)
    after = BLOCKS.index(block) + 1
    if after < len(BLOCKS) and BLOCKS[after].marker == "response":
        return json.loads(BLOCKS[after].text)
    return None


def assert_equal(output: Any, real: Any) -> None:
    """Compares what a page shows with what was returned: numbers to four digits, times
    not at all.
    """
    if isinstance(output, dict):
        assert set(output) == set(real)
        for key in output:
            if not key.endswith("_ms"):
                assert_equal(output[key], real[key])
    elif isinstance(output, list):
        assert len(output) == len(real)
        for one, other in zip(output, real, strict=True):
            assert_equal(one, other)
    elif isinstance(output, float):
        assert real == pytest.approx(output, rel=1e-4, abs=1e-4)
    else:
        assert output == real


def test_responses_belong_to_bodies() -> None:
    alone = []
    for block in marked("response(?: to .+)?"):
        bodies = [body for body in BODIES if body.page == block.page]
        name = block.marker.removeprefix("response").removeprefix(" to ")
        if name:
            of_response = [body for body in bodies if body.marker.endswith(f" as {name}")]
        else:
            of_response = [body for body in bodies if body == BLOCKS[BLOCKS.index(block) - 1]]
        if not of_response:
            alone.append(str(block))
    assert alone == []


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_block_runs(block: Block, service: Service) -> None:
    exec(compile(service.at_its_ports(block.text), str(block), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell_block_runs(block: Block, service: Service) -> None:
    if "curl" in block.text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = service.run(block.text)
    assert done.returncode == 0, done.stderr
    after = BLOCKS[BLOCKS.index(block) + 1 :]
    if after and after[0].page == block.page:
        if after[0].marker == "printed":
            assert_printed(after[0].text, done.stdout)
        elif after[0].marker == "printed, as JSON":
            assert_equal(json.loads(after[0].text), json.loads(done.stdout))


def assert_printed(output: str, printed: str) -> None:
    """Compares words and frames; numbers may differ in their last digit."""
    assert len(output.split()) == len(printed.split())
    for one, other in zip(output.split(), printed.split(), strict=True):
        if re.fullmatch(r"\d+\.\d+", one):
            assert math.isclose(float(one), float(other), abs_tol=2e-4)
        else:
            assert one == other


@pytest.mark.parametrize("block", marked(f"example: sh, {SEVERAL}"), ids=str)
def test_shell_block_runs_on_several_versions(block: Block, several_versions: Service) -> None:
    if "curl" in block.text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = several_versions.run(block.text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", marked(f"example: state file, {SEVERAL}"), ids=str)
def test_state_file_is_followed(block: Block, several_versions: Service) -> None:
    path = several_versions.directory / "state.json"
    before = path.read_bytes() if path.exists() else None
    path.write_text(block.text)
    wanted = json.loads(block.text)["models"]["movielens"]
    address = several_versions.at_its_ports("http://localhost:8080/v1/models")

    def followed() -> bool:
        model = httpx.get(address, verify=False).json()["models"][0]
        current = [version["version"] for version in model["versions"] if version["current"]]
        labels = {
            label: version["version"]
            for version in model["versions"]
            for label in version["labels"]
        }
        return bool(current == wanted["pinned"] and labels == wanted["labels"])

    until(followed)
    path.unlink() if before is None else path.write_bytes(before)


@pytest.mark.parametrize("block", marked("example: features"), ids=str)
def test_features_are_entries_of_a_manifest(block: Block) -> None:
    TypeAdapter(dict[str, Feature]).validate_json(block.text)


@pytest.mark.parametrize("block", marked("example: id rule"), ids=str)
def test_id_rule_is_a_part_of_a_manifest(block: Block) -> None:
    TypeAdapter(IdRule).validate_json(block.text)


@pytest.mark.parametrize("block", marked("example: gRPC service config"), ids=str)
def test_grpc_clients_take_the_service_config(block: Block, service: Service) -> None:
    address = service.at_its_ports("localhost:9090")
    options = [("grpc.service_config", json.dumps(json.loads(block.text)))]
    with grpc.insecure_channel(address, options=options) as channel:
        stub = embedding_service_pb2_grpc.EmbeddingServiceStub(channel)
        listed = stub.ListModels(embedding_service_pb2.ListModelsRequest(), timeout=WAIT_S)
    assert [model.name for model in listed.models] == ["movielens"]


@pytest.mark.parametrize("block", marked("example: recipe(?:, added to .+)?"), ids=str)
def test_recipe_is_valid(block: Block, tmp_path: Path) -> None:
    _, _, base = block.marker.partition("added to ")
    text = block.text
    if base:
        text = (ROOT / base).read_text() + text
    elif "model" not in tomllib.loads(text):
        text = without_towers_of(text) + text
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    read_recipe(path)


def without_towers_of(part: str) -> str:
    """Returns the smallest recipe, without a tower if the part has its own."""
    return RECIPE.partition("[towers.query]")[0] if "[towers." in part else RECIPE


@pytest.mark.parametrize("block", marked("example: recipe, changes .+"), ids=str)
def test_recipe_with_changed_keys_is_valid(block: Block) -> None:
    base = block.marker.partition("changes ")[2]
    changed = merged(tomllib.loads((ROOT / base).read_text()), tomllib.loads(block.text))
    ExportJob.model_validate(changed)


def merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Returns the tables of both; a value of `part` replaces that of `base`."""
    result = dict(base)
    for key, value in part.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merged(base[key], value) if both else value
    return result
