"""AlterConfigs: replace all settings of a topic or a broker (the way before KIP-339; older clients still use it).

Log levels are altered by IncrementalAlterConfigs only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.config_changes import replacing_changes
from broker.api.context import ApiContext
from broker.api.incremental_alter_configs import alter_each
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Replace each resource's settings; each succeeds or fails alone."""
    return await alter_each(context, request, replacing_changes)
