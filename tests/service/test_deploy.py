"""What `deploy/` shows: its variables are settings, and what it promises of rights is in it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from service.settings import PREFIX, ServiceSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
yaml: Any = import_module("yaml")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with compose's tag for what replaces the other file's value."""


_Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def pages(name: str) -> list[Any]:
    return list(yaml.load_all((DEPLOY / name).read_text(), _Loader))


@pytest.mark.parametrize(
    "name", ["compose.yaml", "closed.yaml", "kubernetes.yaml", "rowcast-serve.service", "README.md"]
)
def test_deploy_names_settings_that_there_are(name: str) -> None:
    named = re.findall(rf"{PREFIX}((?!CLIENT_)[A-Z_]+)", (DEPLOY / name).read_text())
    assert {setting.lower() for setting in named} <= set(ServiceSettings.model_fields)


def test_deploy_in_kubernetes_runs_without_rights_and_over_tls() -> None:
    kinds = {page["kind"]: page["spec"] for page in pages("kubernetes.yaml")}
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
    assert ports == {"https": variables[f"{PREFIX}HTTP_PORT"], "grpcs": variables[f"{PREFIX}GRPC_PORT"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    assert kinds["NetworkPolicy"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in kinds["NetworkPolicy"]
    drain_s = ServiceSettings.model_fields["drain_s"].default
    notice_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > notice_s + drain_s + 10


def test_deploy_in_compose_mounts_every_secret_that_it_names() -> None:
    (closed,) = pages("closed.yaml")
    serve = closed["services"]["serve"]
    assert set(serve["secrets"]) == set(closed["secrets"])
    for name in ("TLS_CERT", "TLS_KEY", "TOKENS"):
        assert Path(serve["environment"][PREFIX + name]).name in serve["secrets"]
    (open_,) = pages("compose.yaml")
    assert open_["services"]["serve"]["read_only"]
    drain_s = ServiceSettings.model_fields["drain_s"].default
    assert int(open_["services"]["serve"]["stop_grace_period"].removesuffix("s")) > drain_s + 10
    assert open_["services"]["serve"]["cap_drop"] == ["ALL"]


def test_images_find_in_their_context_what_they_copy() -> None:
    root = DEPLOY.parent
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (root / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    everything, *rest = (root / ".dockerignore").read_text().split()
    assert everything == "*"
    assert sources == {line[1:] for line in rest if line.startswith("!")}
    assert all((root / source).exists() for source in sources)
