"""The variables by which Kubernetes announces the Services of a namespace to its pods.

A Service named `rowcast-http` sets ROWCAST_HTTP_PORT, and others, in all pods that do not have
`enableServiceLinks: false`. They are not settings of a program, though they look like some.

Source: kubernetes/kubernetes, pkg/kubelet/envvars/envvars.go.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")


def is_service_link(name: str, value: str) -> bool:
    """Returns whether Kubernetes has set a variable for a Service.

    Args:
      name: The name of the variable, in capitals.
      value: The value of the variable.
    """
    if _NAME.fullmatch(name):
        return True
    return name.endswith("_PORT") and _ADDRESS.fullmatch(value) is not None
