"""AlterConfigs: replace all settings of a topic or a broker. Older clients use it instead of IncrementalAlterConfigs.

Log levels can be altered by IncrementalAlterConfigs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.api.config_resources import Changes
from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.incremental_alter_configs import alter_each, check_named_once
from broker.errors import BrokerError, ErrorCode
from broker.settings import Setting


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Replace the settings of each resource. Each succeeds or fails alone."""
    return await alter_each(context, request, client, _replacing_changes)


def _replacing_changes(asked: Sequence[Any], current: Mapping[str, str], keys: Mapping[str, Setting]) -> Changes:
    """Delete all values set on the resource, except those in `asked`. Raises BrokerError `invalid_request`."""
    check_named_once(asked)
    if nulls := [change.name for change in asked if change.value is None]:
        raise BrokerError(ErrorCode.invalid_request, f"a value is needed for {', '.join(nulls)}")
    return {**dict.fromkeys(current), **{change.name: change.value for change in asked}}
