"""The settings of a topic or a broker as a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from starlette.requests import Request

from broker.protocol.described_config import ConfigEntry, ConfigSource
from pykafka_ui.pages.listing import Listing, listing
from pykafka_ui.render import setting_text


def settings_listing(request: Request, entries: Iterable[ConfigEntry], *, changed: bool) -> Listing[ConfigEntry]:
    """Those whose name, value or documentation has the text; with `changed` only those that somebody has set."""
    needle = request.query_params.get("q", "").strip().casefold()

    def is_wanted(one: ConfigEntry) -> bool:
        if changed and one.source is ConfigSource.DEFAULT_CONFIG:
            return False
        value = "" if one.sensitive else one.value or ""
        texts = (one.name, value, setting_text(one.name, value), one.documentation or "")
        return any(needle in text.casefold() for text in texts)

    keys: dict[str, Callable[[ConfigEntry], Any]] = {
        "name": lambda one: one.name,
        "source": lambda one: (one.source.name, one.name),
    }
    return listing(request, filter(is_wanted, entries), keys)
