"""Nodes below `/config`: reads them, and changes some entries of one without losing what others change meanwhile.

Both functions block and raise ConnectionFailed as the methods of the Registry.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.zookeeper import znodes
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.operations import BadVersion, NodeExists, NoNode


def read_config(zk: MetadataStore, path: str) -> tuple[dict[str, str], int | None]:
    """The config and its version, None when there is no node. Raises MalformedNode."""
    try:
        data, stat = zk.get(path)
    except NoNode:
        return {}, None
    return znodes.decode_config(path, data), stat.version


def alter_config(zk: MetadataStore, path: str, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Set entries, or remove those whose new value is None; returns the whole config."""
    while True:
        config, version = read_config(zk, path)
        merged: dict[str, str | None] = {**config, **changes}
        altered = {key: value for key, value in merged.items() if value is not None}
        data = znodes.encode_config(altered)
        try:
            if version is None:
                zk.create(path, data, parents=True)
            else:
                zk.set(path, data, version)
            return altered
        except (BadVersion, NodeExists, NoNode):
            continue  # another broker was faster
