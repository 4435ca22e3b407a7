"""A hook of mkdocs: a picture that is light or dark becomes two, of which the site shows the one of its switch.

Pages say `<picture>` with one source for dark, which a code host shows right. mkdocs does not look into HTML, so it
neither corrects such an address for the page's place in the site, nor checks it; and the browser would choose by the
system's colours, whatever the site's switch says.
"""

from __future__ import annotations

import re
from typing import Any

_PICTURE = re.compile(
    r'^<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<text>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>$',
    re.MULTILINE,
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with Markdown's pictures, whose addresses mkdocs corrects and checks."""
    return _PICTURE.sub(r"![\g<text>](\g<light>#only-light) ![\g<text>](\g<dark>#only-dark)", markdown)
