"""All APIs that are served, by key: what `@serves` declares in the files beside this one.

The router serves from this table and ApiVersions answers from it, so the broker advertises exactly what it handles. To
add an API, write a function and declare it; CONTRIBUTING.md names the places of its key, rights and page.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from typing import Any

from broker import api
from broker.api.context import ApiContext
from broker.api.serving import SERVED, Served
from broker.background_tasks import BackgroundTasks
from broker.net.router import Route
from broker.net.stopwatch import Stopwatch, add_work

for _module in pkgutil.iter_modules(api.__path__, f"{api.__name__}."):
    importlib.import_module(_module.name)

API_TABLE: tuple[Served, ...] = tuple(sorted(SERVED.values()))


def make_routes(context: ApiContext) -> list[Route]:
    """Bind the table to a running broker."""
    return [Route(one.api, one.low, one.high, _bound(one, context), one.refuse) for one in API_TABLE]


def _bound(served: Served, context: ApiContext) -> Callable[..., Any]:
    handle = functools.partial(served.handler, context)
    return _uncancelled(handle) if served.changes_metadata else handle


def _uncancelled(handle: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let a request run to its end even if its client disconnects."""
    tasks = BackgroundTasks()

    async def run(*arguments: Any) -> Any:
        watch = Stopwatch(handle(*arguments))
        try:
            return await tasks.finish("a request whose client has left", watch)
        finally:
            add_work(watch.seconds)

    return run
