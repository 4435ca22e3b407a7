"""The pages. Each is a whole document at an address that can be sent to somebody else.

htmx asks for the same address again every few seconds and takes over what has changed, so a page without scripts shows
the same.
"""

from __future__ import annotations

from fastapi import APIRouter

from pykafka_ui.console import Console
from pykafka_ui.pages.archive_page import ArchivePage
from pykafka_ui.pages.cluster_pages import ClusterPages
from pykafka_ui.pages.find_page import FindPage
from pykafka_ui.pages.group_pages import GroupPages
from pykafka_ui.pages.record_pages import RecordPages
from pykafka_ui.pages.streams_page import StreamsPage
from pykafka_ui.pages.topic_pages import TopicPages
from pykafka_ui.render import Renderer


class Pages:
    """Those that every console has."""

    def __init__(self, console: Console, render: Renderer) -> None:
        parts = (ClusterPages, TopicPages, RecordPages, GroupPages, ArchivePage, StreamsPage, FindPage)
        self._parts = [part(console, render) for part in parts]

    def router(self) -> APIRouter:
        pages = APIRouter(include_in_schema=False)
        for part in self._parts:
            pages.include_router(part.router())
        return pages
