"""The variables by which Kubernetes tells every pod of a namespace of its Services.

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
      name: In capitals.
      value: Of the variable.
    """
    if _NAME.fullmatch(name):
        return True
    return name.endswith("_PORT") and _ADDRESS.fullmatch(value) is not None
