"""Checks the manifests for KServe: their fields are KServe's, and the service accepts their
options.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from bundle.format.paths import MANIFEST
from service.cli.serve import command
from tests.repository.deploy.test_configurations import documents, longest_drain_s

MODELS = "/mnt/models"
"""Where KServe puts what `storageUri` names."""


@pytest.fixture(scope="module")
def runtime() -> dict[str, Any]:
    (manifest,) = documents("kserve/serving-runtime.yaml")
    return dict(manifest)


@pytest.fixture(scope="module")
def inference_service() -> dict[str, Any]:
    (manifest,) = documents("kserve/inference-service.yaml")
    return dict(manifest)


@pytest.fixture(scope="module")
def container(runtime: dict[str, Any]) -> dict[str, Any]:
    (container,) = runtime["spec"]["containers"]
    return dict(container)


@pytest.fixture
def settings(container: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The settings that the service takes from the arguments of the container."""
    arguments = [argument.replace(MODELS, str(tmp_path)) for argument in container["args"]]
    outcome = CliRunner().invoke(command(), [*arguments, "--print-settings"])
    assert outcome.exit_code == 0, outcome.output
    return dict(json.loads(outcome.output))


PROTOCOLS = {"v1", "v2", "grpc-v1", "grpc-v2"}
"""The constants of KServe, which its schema does not state."""


@pytest.mark.parametrize("name", ["serving-runtime", "inference-service"])
def test_manifest_fits_the_schema_of_kserve(name: str) -> None:
    (manifest,) = documents(f"kserve/{name}.yaml")
    _validate(manifest)


def test_schema_of_kserve_rejects_other_fields_and_types(
    runtime: dict[str, Any], inference_service: dict[str, Any]
) -> None:
    format_of_runtime = {"name": "rowcast", "autoselect": True}
    spec = {**runtime["spec"], "supportedModelFormats": [format_of_runtime]}
    with pytest.raises(jsonschema.ValidationError, match="autoselect"):
        _validate({**runtime, "spec": spec})
    predictor = {**inference_service["spec"]["predictor"], "minReplicas": "2"}
    with pytest.raises(jsonschema.ValidationError, match="'2' is not of type 'integer'"):
        _validate({**inference_service, "spec": {"predictor": predictor}})


def _validate(manifest: dict[str, Any]) -> None:
    """Raises ValidationError if a manifest does not fit the definitions of KServe."""
    schema = json.loads((Path(__file__).parent / "kserve.schema.json").read_text())
    jsonschema.validate(manifest, schema["$defs"][manifest["kind"]])


def test_protocols_are_those_of_kserve(
    runtime: dict[str, Any], inference_service: dict[str, Any]
) -> None:
    protocols = {*runtime["spec"]["protocolVersions"]}
    assert protocols <= PROTOCOLS
    assert inference_service["spec"]["predictor"]["model"]["protocolVersion"] in protocols


def test_pod_of_the_runtime_and_the_service_fits_the_schema_of_kubernetes(
    runtime: dict[str, Any], inference_service: dict[str, Any]
) -> None:
    validation = pytest.importorskip("kubernetes_validate")
    predictor = inference_service["spec"]["predictor"]
    kserves_own = {"model", "minReplicas"}
    spec = {name: value for name, value in predictor.items() if name not in kserves_own}
    for name in ("containers", "volumes"):
        spec[name] = runtime["spec"][name]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    validation.validate(pod, "1.33", strict=True)
    drain = {"ROWCAST_DRAIN_DELAY_S": "10"}
    assert spec["terminationGracePeriodSeconds"] > longest_drain_s(drain)


def test_runtime_speaks_the_protocol_at_the_ports_that_it_names(
    container: dict[str, Any], settings: dict[str, Any]
) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "http": settings["http_port"],
        "h2c": settings["grpc_port"],
        "health": settings["health_port"],
    }
    assert next(iter(ports)) == "http"  # KServe's Service has the first one as port 80
    assert settings["host"] == "0.0.0.0"
    assert settings["protocols"] == ["open-inference"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {settings["health_port"]}
    assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]


def test_runtime_writes_nothing_beside_the_models(
    container: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert container["securityContext"]["readOnlyRootFilesystem"]
    (mount,) = container["volumeMounts"]
    assert Path(settings["state_file"]).parent == Path(mount["mountPath"])


def test_service_of_a_model_names_the_runtime(
    runtime: dict[str, Any], inference_service: dict[str, Any]
) -> None:
    model = inference_service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [supported["name"] for supported in runtime["spec"]["supportedModelFormats"]]
    assert model["modelFormat"]["name"] in formats
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert not model["storageUri"].endswith((MANIFEST, inference_service["metadata"]["name"]))
