"""axe-core (Deque's checks of accessibility), fetched by npm, run in a page."""

from __future__ import annotations

import functools
from typing import Any

from playwright.sync_api import Page

from tests.support.npm_package import node_modules

_VERSION = "4.14.1"


@functools.cache
def _script() -> str:
    """Raises Unavailable."""
    return (node_modules("axe-core", _VERSION) / "axe-core" / "axe.min.js").read_text()


def violations(page: Page) -> list[str]:
    """What is wrong with a page: the rule, how bad it is, and the first places. Raises Unavailable."""
    page.evaluate(_script())
    found: dict[str, Any] = page.evaluate("() => axe.run()")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: "
        + "; ".join(f"{node['target']} {node['failureSummary']!r}" for node in one["nodes"][:3])
        for one in found["violations"]
    ]
