"""Resources as REST Proxy v3 writes them: `kind`, `metadata` with its own address and name, and links to others.

reads.py declares each `Resource` once. Its routes, its list and the document of each row are made here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from starlette.requests import Request

from pykafka_ui.console import Console
from pykafka_ui.seen.snapshot import Snapshot

Document = dict[str, Any]
_NUMBERS = ("broker_id", "partition_id")
_WITH_SLASHES = re.compile(r"{(group_id|consumer_id)}")
_PARAMETER = re.compile(r"{(\w+)}")


class View:
    """What `console` has seen, for one request; `path` has the parameters of its path."""

    def __init__(self, console: Console, request: Request, path: Mapping[str, Any]) -> None:
        """Raises HTTPException while nothing was seen, and for another cluster."""
        self.console = console
        self.path = path
        self.seen = snapshot_of(console, path.get("cluster_id"))
        self.clusters = f"{request.base_url}api/v3/clusters"
        self._cluster = f"{self.clusters}/{quote(self.seen.cluster_id, safe='')}"

    def link(self, *parts: object) -> Document:
        """To an address below the cluster's, as the client that asks sees it."""
        return {"related": self.address(*parts)}

    def address(self, *parts: object) -> str:
        return "/".join([self._cluster, *(quote(str(part), safe="") for part in parts)])


Rows = Callable[[View, Any], Mapping[Any, Any]]
Fields = Callable[[View, Sequence[object], Any], Document]


class Resource:
    """A list, and each row of it at an address of its own. `@parent.has(…)` declares one below each row of another."""

    def __init__(self, path: str, kind: str, rows: Rows, fields: Fields, about: str, missing: str = "") -> None:
        """`path`: where the list is, and the key of a row: `partitions/{partition_id}`. Without a key there is no list,
        and one row of the key (). `rows`: by key, those below a row of the parent. `fields`: of a row, given its
        address below the cluster, beside the parts of that address, which every row has; its name and docstring are the
        row's in OpenAPI. `about`: the text of the list there. `missing`: the error where no row has the key."""
        self._list, _, self._key = path.partition("/")
        self._kind, self._rows, self._fields = kind, rows, fields
        self._about, self._missing = about, missing
        self._names = _PARAMETER.findall(path)
        self._below: list[Resource] = []
        self._at: list[str] = []
        """The address of a row below the cluster, with the names of its parts in braces."""

    def has(self, path: str, kind: str, rows: Rows, about: str = "", missing: str = "") -> Callable[[Fields], Resource]:
        """Declares a resource by its `fields`; see above."""

        def declare(fields: Fields) -> Resource:
            self._below.append(Resource(path, kind, rows, fields, about, missing))
            return self._below[-1]

        return declare

    def document(self, view: View, at: Sequence[object], row: Any) -> Document:
        """A row, with its address below the cluster."""
        pairs = zip(at[::2], at[1::2], strict=False)
        named = [f"{str(name).removesuffix('s')}={quote(str(value), safe='')}" for name, value in pairs]
        last = [str(at[-1])] if len(at) % 2 else []
        metadata = {
            "self": view.address(*at),
            "resource_name": "/".join([f"crn:///kafka={view.seen.cluster_id}", *named, *last]),
        }
        parts = {
            name[1:-1].replace("group_id", "consumer_group_id"): value
            for name, value in zip(self._at, at, strict=True)
            if name.startswith("{")
        }
        found = {"kind": self._kind, "metadata": metadata, "cluster_id": view.seen.cluster_id, **parts}
        return found | self._fields(view, at, row)

    def add_to(self, api: APIRouter, console: Console, path: str = "", above: Sequence[Resource] = ()) -> None:
        """Add the routes. What is below comes before the row: the row's key may have slashes, and would match it."""
        list_path = f"{path}/{self._list}"
        row_path = f"{list_path}/{self._key}" if self._key else list_path
        self._at = row_path.split("/")[3:]

        def rows(view: View) -> Document:
            at, found = _filled(list_path, view.path), self._rows(view, _chosen(above, view))
            return {
                "kind": f"{self._kind}List",
                "metadata": {"self": view.address(*at[2:]) if above else view.clusters, "next": None},
                "data": [self.document(view, [*at, *self._parts(key)][2:], row) for key, row in found.items()],
            }

        def row(view: View) -> Document:
            return self.document(view, _filled(row_path, view.path)[2:], _chosen([*above, self], view))

        name = self._fields.__name__
        if self._key:
            _add_route(api, console, list_path, f"{name}s", self._about, rows)
        for resource in self._below:
            resource.add_to(api, console, row_path, [*above, self])
        _add_route(api, console, row_path, name, inspect.getdoc(self._fields), row)

    def _parts(self, key: Any) -> list[object]:
        """Of the address of a row, behind the list's."""
        values = iter(key if isinstance(key, tuple) else [key])
        return [next(values) if part.startswith("{") else part for part in self._key.split("/")]

    def chosen(self, view: View, parent: Any) -> Any:
        """The row of the path's key, below a row of the parent. Raises HTTPException when there is none."""
        values = tuple(view.path[name] for name in self._names)
        key = values[0] if len(values) == 1 else values
        rows = self._rows(view, parent)
        if key not in rows:
            raise HTTPException(404, self._missing.format(**view.path))
        return rows[key]


def snapshot_of(console: Console, cluster_id: str | None = None) -> Snapshot:
    """Raises HTTPException while nothing was seen, and for another cluster."""
    found = console.sampler.watch(groups=True)
    if found.at_ms == 0:
        raise HTTPException(503, f"the cluster does not answer: {found.error or 'not yet'}")
    if cluster_id is not None and cluster_id != found.cluster_id:
        raise HTTPException(404, f"there is no cluster {cluster_id!r}; this one is {found.cluster_id!r}")
    return found


def upper_snake(name: str) -> str:
    """PreparingRebalance → PREPARING_REBALANCE"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def _chosen(chain: Sequence[Resource], view: View) -> Any:
    row = None
    for resource in chain:
        row = resource.chosen(view, row)
    return row


def _filled(path: str, values: Mapping[str, object]) -> list[object]:
    """The parts of an address: `/topics/{topic_name}` → `["topics", "flights"]`."""
    return [values[part[1:-1]] if part.startswith("{") else part for part in path.split("/")[1:]]


def _add_route(
    api: APIRouter, console: Console, path: str, name: str, about: str | None, answer: Callable[[View], Document]
) -> None:
    """A route whose parameters FastAPI reads from a signature, as it does for a function that is written out."""

    def route(request: Request, **given: Any) -> Document:
        return answer(View(console, request, given))

    types = {"request": Request, **{key: int if key in _NUMBERS else str for key in _PARAMETER.findall(path)}}
    parameters = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=of) for key, of in types.items()]
    route.__signature__ = inspect.Signature(parameters, return_annotation=Document)  # type: ignore[attr-defined]
    api.add_api_route(_WITH_SLASHES.sub(r"{\1:path}", path), route, name=name, description=about)
