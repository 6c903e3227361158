"""Checks the files of `deploy/`: their variables are settings, and rights, limits and timeouts are
as documented.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import textwrap
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from bundle.tables.shard_number import ShardNumber
from service.config import PREFIX, ServiceSettings

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DEFAULTS = {name: field.default for name, field in ServiceSettings.model_fields.items()}
yaml: Any = import_module("yaml")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads YAML with compose's tag for a value that replaces the value of the other file."""


_Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def documents(name: str) -> list[Any]:
    return list(yaml.load_all((DEPLOY / name).read_text(), _Loader))


def longest_drain_s(variables: dict[str, str]) -> float:
    """Returns the maximum time from SIGTERM to the exit: the delay, then requests over HTTP, then
    their computation.
    """
    delay_s = float(variables.get(f"{PREFIX}DRAIN_DELAY_S", DEFAULTS["drain_delay_s"]))
    return delay_s + 2 * float(DEFAULTS["drain_timeout_s"])


@pytest.mark.parametrize(
    "name",
    [
        "compose.yaml",
        "closed.yaml",
        "kubernetes/rowcast.yaml",
        "kubernetes/sharded/kustomization.yaml",
        "kubernetes/sharded/shards.yaml",
        "kubernetes/sharded/routers.yaml",
        "rowcast-serve.service",
        "README.md",
    ],
)
def test_deploy_names_settings_that_exist(name: str) -> None:
    named = re.findall(rf"{PREFIX}((?!CLIENT_)[A-Z_]+)", (DEPLOY / name).read_text())
    assert {setting.lower() for setting in named} <= set(DEFAULTS)


def test_kubernetes_runs_without_rights_and_over_tls() -> None:
    kinds = {
        document["kind"]: document["spec"] for document in documents("kubernetes/rowcast.yaml")
    }
    pod = kinds["Deployment"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounted.values()) == {volume["name"] for volume in pod["volumes"]}
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    for name in ("TLS_CERT", "TLS_KEY", "TOKENS"):
        assert str(Path(variables[PREFIX + name]).parent) in mounted
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports == {
        "https": variables[f"{PREFIX}HTTP_PORT"],
        "grpcs": variables[f"{PREFIX}GRPC_PORT"],
        "health": variables[f"{PREFIX}HEALTH_PORT"],
    }
    assert kinds["NetworkPolicy"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in kinds["NetworkPolicy"]
    assert pod["terminationGracePeriodSeconds"] > longest_drain_s(variables)


@pytest.mark.parametrize(
    ("file", "kind"),
    [("kubernetes/rowcast.yaml", "Deployment"), ("kubernetes/sharded/shards.yaml", "StatefulSet")],
)
def test_probes_of_kubernetes_use_the_health_address(file: str, kind: str) -> None:
    (spec,) = [document["spec"] for document in documents(file) if document["kind"] == kind]
    container = spec["template"]["spec"]["containers"][0]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {"health"}
    assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]
    (port,) = [port["containerPort"] for port in container["ports"] if port["name"] == "health"]
    assert variables_of(container)[f"{PREFIX}HEALTH_PORT"] == str(port)


def test_checks_and_scrapes_without_kubernetes_use_the_health_address() -> None:
    (compose,) = documents("compose.yaml")
    port = compose["services"]["serve"]["environment"][f"{PREFIX}HEALTH_PORT"]
    (prometheus,) = documents("prometheus.yaml")
    (scraped,) = prometheus["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"serve:{port}"]}]

    (closed,) = documents("closed.yaml")
    unit = (DEPLOY / "rowcast-serve.service").read_text()
    assert closed["services"]["serve"]["environment"][f"{PREFIX}HEALTH_PORT"] == port
    assert f"{PREFIX}HEALTH_PORT={port}" in unit.split()

    servers = re.findall(r"^ +server (.*)", (DEPLOY / "haproxy.cfg").read_text(), re.MULTILINE)
    assert servers
    assert all(f"check port {port}" in server for server in servers)


def built(directory: Path) -> dict[tuple[str, str], Any]:
    """Returns the objects that `kubectl kustomize` builds, by kind and name, validated against the
    Kubernetes schemas.
    """
    validation = pytest.importorskip("kubernetes_validate")
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        ["kubectl", "kustomize", directory], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    actual = list(yaml.safe_load_all(done.stdout))
    for each in actual:
        validation.validate(each, "1.33", strict=True)
    return {(each["kind"], each["metadata"]["name"]): each for each in actual}


def test_kustomization_builds_objects_of_the_schemas_of_kubernetes() -> None:
    expected = {document["kind"] for document in documents("kubernetes/rowcast.yaml")}
    assert {kind for kind, _ in built(DEPLOY / "kubernetes")} == expected


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """Builds an overlay of the base with the component `sharded`."""
    overlay = tmp_path_factory.mktemp("overlay")
    base = os.path.relpath((DEPLOY / "kubernetes").resolve(), overlay.resolve())
    (overlay / "kustomization.yaml").write_text(
        f"resources: [{base}]\ncomponents: [{base}/sharded]\n"
    )
    return built(overlay)


def test_overlay_of_the_how_to_builds(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/run-shards-on-kubernetes.md").read_text()
    (overlay,) = re.findall(r"\n\n((?: {8}.*\n)+)", page[page.index("        resources:") - 2 :])[
        :1
    ]
    base = os.path.relpath((DEPLOY / "kubernetes").resolve(), tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(
        textwrap.dedent(overlay).replace("../rowcast/deploy/kubernetes", base)
    )
    actual = built(tmp_path)
    (config,) = (each["data"] for (kind, _), each in actual.items() if kind == "ConfigMap")
    assert (config["SHARDS"], config["ROWCAST_SHARD_MIN_BYTES"]) == ("16", str(1 << 30))
    assert actual["StatefulSet", "rowcast-shards"]["spec"]["replicas"] == 32


def test_change_of_the_number_of_shards_adds_a_set_of_shards_that_routers_find(
    tmp_path: Path, sharded: dict[tuple[str, str], Any]
) -> None:
    page = (ROOT / "docs/how-to/run-shards-on-kubernetes.md").read_text()
    (patch,) = re.findall(r"\n\n((?: {10}.*\n)+)", page[page.index("### Change the number of") :])
    base = os.path.relpath((DEPLOY / "kubernetes").resolve(), tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{base}]\ncomponents: [{base}/sharded]\npatches:\n{textwrap.dedent(patch)}"
    )
    actual = built(tmp_path)
    assert actual.keys() - sharded.keys() == {("StatefulSet", "rowcast-shards-24")}
    spec = actual["StatefulSet", "rowcast-shards-24"]["spec"]
    before = sharded["StatefulSet", "rowcast-shards"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    service = actual["Service", "rowcast-shards"]["spec"]
    assert service["selector"].items() <= labels.items()
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert (
        not spec["selector"]["matchLabels"].items()
        <= before["template"]["metadata"]["labels"].items()
    )


def variables_of(container: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_shards_run_with_the_rights_of_routers_at_the_addresses_that_routers_use(
    sharded: dict[tuple[str, str], Any],
) -> None:
    routers = sharded["Deployment", "rowcast"]["spec"]
    shards = sharded["StatefulSet", "rowcast-shards"]["spec"]
    service = sharded["Service", "rowcast-shards"]
    for spec in (routers, shards):
        pod = spec["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= claims | {volume["name"] for volume in pod["volumes"]}
    router, shard = (
        variables_of(spec["template"]["spec"]["containers"][0]) for spec in (routers, shards)
    )
    assert router[f"{PREFIX}SHARD_ADDRESSES"] == f"dns:rowcast-shards:{shard[f'{PREFIX}GRPC_PORT']}"
    assert (service["spec"]["clusterIP"], shards["serviceName"]) == ("None", "rowcast-shards")
    assert service["spec"]["selector"].items() <= shards["template"]["metadata"]["labels"].items()
    assert shards["template"]["spec"]["terminationGracePeriodSeconds"] > longest_drain_s(shard)
    assert ("PersistentVolumeClaim", "rowcast-bundles") not in sharded


def test_pods_of_shards_are_numbered_and_a_disruption_stops_one_replica(
    sharded: dict[tuple[str, str], Any],
) -> None:
    (config,) = (each["data"] for (kind, _), each in sharded.items() if kind == "ConfigMap")
    spec = sharded["StatefulSet", "rowcast-shards"]["spec"]
    total = int(config["SHARDS"])
    serve, pull = (container["args"][0] for container in spec["template"]["spec"]["containers"])
    numbers = []
    for pod in range(spec["replicas"]):
        environment = {**os.environ, **config, "POD_INDEX": str(pod)}
        command = ["sh", "-c", serve.replace("exec rowcast-serve", "echo")]
        printed = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout
        numbers.append(str(ShardNumber.parse(printed.split()[-1])))
    assert sorted(numbers) == sorted([f"{number}/{total}" for number in range(1, total + 1)] * 2)
    assert serve.split("--shard ")[1] in pull, "pull and serve use different shard numbers"
    assert sharded["PodDisruptionBudget", "rowcast-shards"]["spec"]["maxUnavailable"] == 1


def test_ray_service_runs_what_serve_deploy_does_and_fits_its_schemas() -> None:
    validation = pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    ray_service, service = documents("kubernetes/rayservice.yaml")
    jsonschema.validate(
        ray_service, json.loads((Path(__file__).parent / "rayservice.schema.json").read_text())
    )
    validation.validate(service, "1.33", strict=True)
    (application,) = documents("ray/replicas.yaml")
    assert yaml.safe_load(ray_service["spec"]["serveConfigV2"]) == application
    cluster = ray_service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "ray"},
            "spec": group["template"]["spec"],
        }
        validation.validate(pod, "1.33", strict=True)
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
    workers = cluster["workerGroupSpecs"][0]["template"]
    assert service["spec"]["selector"].items() <= workers["metadata"]["labels"].items()
    settings = application["applications"][0]["args"]
    (container,) = workers["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings["http_port"], "grpc": settings["grpc_port"]}
    assert settings["root"] in {mount["mountPath"] for mount in container["volumeMounts"]}
    probes = [each["tcpSocket"]["port"] for name, each in container.items() if "Probe" in name]
    assert probes == ["http"]  # requests of an overload would delay any other probe
    assert workers["spec"]["terminationGracePeriodSeconds"] > longest_drain_s({})


def test_serve_accepts_the_application_and_the_service_its_settings() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    ray_serve = pytest.importorskip("service.ray_serve")
    (config,) = documents("ray/replicas.yaml")
    (application,) = schema.ServeDeploySchema.model_validate(config).applications
    ray_serve.replicas(application.args)
    (deployment,) = application.deployments
    assert deployment.name == ray_serve.DEPLOYMENT
    assert resolve_name(application.import_path) is ray_serve.replicas
    policy = deployment.autoscaling_config["policy"]["policy_function"]
    assert resolve_name(policy) is ray_serve.scale_by_inflight
    ray_serve.UserConfig.of(deployment.user_config)


def test_shards_on_ray_are_complete_and_match_their_routers() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    ray_serve = pytest.importorskip("service.ray_serve")
    (config,) = documents("ray/shards.yaml")
    *shards, router = schema.ServeDeploySchema.model_validate(config).applications
    settings = [ray_serve.read_options(shard.args, root="/") for shard in (*shards, router)]
    assert [str(setting.shard) for setting in settings[:-1]] == [
        f"{number + 1}/{len(shards)}" for number in range(len(shards))
    ]
    assert settings[-1].shard_addresses
    assert len({setting.shard_min_bytes for setting in settings}) == 1
    assert len(
        {port for setting in settings for port in (setting.http_port, setting.grpc_port)}
    ) == 2 * len(settings)
    for application in (*shards, router):
        (deployment,) = application.deployments
        assert deployment.name == ray_serve.DEPLOYMENT
        ray_serve.UserConfig.of(deployment.user_config)


def test_compose_mounts_every_secret_that_it_names() -> None:
    (closed,) = documents("closed.yaml")
    serve = closed["services"]["serve"]
    assert set(serve["secrets"]) == set(closed["secrets"])
    for name in ("TLS_CERT", "TLS_KEY", "TOKENS"):
        assert Path(serve["environment"][PREFIX + name]).name in serve["secrets"]
    (plain,) = documents("compose.yaml")
    assert plain["services"]["serve"]["read_only"]
    assert plain["services"]["serve"]["cap_drop"] == ["ALL"]
    assert int(plain["services"]["serve"]["stop_grace_period"].removesuffix("s")) > longest_drain_s(
        {}
    )


def test_systemd_unit_waits_for_the_longest_drain() -> None:
    unit = dict(
        re.findall(r"^(\w+)=(.*)$", (DEPLOY / "rowcast-serve.service").read_text(), re.MULTILINE)
    )
    assert (unit["Type"], unit["NotifyAccess"]) == ("notify", "main")
    assert int(unit["TimeoutStopSec"]) > longest_drain_s({})


def test_proxies_keep_idle_connections_for_less_time_than_the_service() -> None:
    nginx = (DEPLOY / "nginx.conf").read_text()
    haproxy = (DEPLOY / "haproxy.cfg").read_text()
    upstreams = re.findall(r"upstream \w+ \{(.*?)\}", nginx, re.DOTALL)
    idle = [re.findall(r"keepalive_timeout (\d+)s", upstream) for upstream in upstreams]
    idle.append(re.findall(r"timeout http-keep-alive (\d+)s", haproxy))
    assert all(int(seconds) < DEFAULTS["keep_alive_s"] for (seconds,) in idle)
    longest = re.findall(r"proxy_read_timeout (\d+)s", nginx) + re.findall(
        r"timeout server (\d+)s", haproxy
    )
    assert all(int(seconds) > DEFAULTS["request_timeout_s"] for seconds in longest)
    (body_mib,) = re.findall(r"client_max_body_size (\d+)m", nginx)
    assert int(body_mib) << 20 == DEFAULTS["max_request_bytes"]


def test_haproxy_sends_one_request_id() -> None:
    haproxy = (DEPLOY / "haproxy.cfg").read_text()
    # It adds a second header to the client's, and the service then replaces both.
    assert "unique-id-header" not in haproxy
    assert re.search(r"set-header x-request-id .* unless \{ req.hdr\(x-request-id\)", haproxy)


def test_haproxy_accepts_its_configuration() -> None:
    checked("haproxy", "-c", "-f", "haproxy.cfg")


def test_nginx_accepts_its_configuration() -> None:
    if os.geteuid() != 0:
        pytest.skip("nginx opens its directories under /var even for a check")
    checked("nginx", "-t", "-c", "nginx.conf")


def checked(program: str, *options: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    *before, file = options
    done = subprocess.run(
        [program, *before, str(DEPLOY / file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_images_find_in_their_context_what_they_copy() -> None:
    copied = re.findall(
        r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    sources = {source for line in copied for source in line.split()}
    everything, *patterns = (ROOT / ".dockerignore").read_text().split()
    assert everything == "*"
    assert sources == {line[1:] for line in patterns if line.startswith("!")}
    wheels = {"dist/rowcast-*.whl"}  # `make wheels` writes them
    assert wheels < sources
    assert all((ROOT / source).exists() for source in sources - wheels)
