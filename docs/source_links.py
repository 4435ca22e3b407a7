"""A hook of mkdocs: links from a page to files outside docs/ lead to the repository.

In the page's source they are relative, so that they work on a code host, too.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]+)([^)]*\))")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """The page with the address of the repository in front of links that leave docs/."""

    def resolved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[2]))
        if target.startswith("docs/"):
            return match[0]
        return f"{match[1]}{config.repo_url.rstrip('/')}/blob/main/{target}{match[3]}"

    return _LINK.sub(resolved, markdown)
