"""Resources as REST Proxy v3 writes them: `kind`, `metadata` with its own address and name, and links to others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

Document = dict[str, Any]
_NAMES = {
    "brokers": "broker",
    "topics": "topic",
    "partitions": "partition",
    "replicas": "replica",
    "configs": "config",
    "consumer-groups": "consumer-group",
    "consumers": "consumer",
    "assignments": "assignment",
    "lags": "lag",
}
"""Parts of an address and of a resource's name (crn), where they differ."""


class Links:
    """Addresses below one cluster's, as the client that asks sees them."""

    def __init__(self, request: Request, cluster_id: str) -> None:
        self._clusters = f"{request.base_url}api/v3/clusters"
        self._cluster_id = cluster_id

    def to(self, *parts: object) -> Document:
        """`related`: a link."""
        return {"related": self.address(*parts)}

    def address(self, *parts: object) -> str:
        return "/".join([self._clusters, *(quote(str(part), safe="") for part in (self._cluster_id, *parts))])

    def resource(self, kind: str, *parts: object, **fields: Any) -> Document:
        """A resource at an address below the cluster."""
        metadata = {"self": self.address(*parts), "resource_name": self._name(parts)}
        return {"kind": kind, "metadata": metadata, "cluster_id": self._cluster_id, **fields}

    def collection(self, kind: str, rows: Sequence[Document], *parts: object, whole: bool = True) -> Document:
        """A list at an address below the cluster; `whole=False`: of clusters."""
        metadata = {"self": self.address(*parts) if whole else self._clusters, "next": None}
        return {"kind": kind, "metadata": metadata, "data": list(rows)}

    def _name(self, parts: Sequence[object]) -> str:
        """`crn:///kafka=abc/topic=flights/partition=0`"""
        pairs = zip(parts[::2], parts[1::2], strict=False)
        named = [f"{_NAMES.get(str(name), str(name))}={quote(str(value), safe='')}" for name, value in pairs]
        last = [str(parts[-1])] if len(parts) % 2 else []
        return "/".join([f"crn:///kafka={self._cluster_id}", *named, *last])


def upper_snake(name: str) -> str:
    """PreparingRebalance → PREPARING_REBALANCE"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
