"""A hook of mkdocs: links that leave `docs/` in the repository lead to pages of the site or to the
published repository, and a dead link ends the build.
"""

from __future__ import annotations

import logging
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_REPOSITORY_FILE = re.compile(
    r"\[([^\]]+)\]\((?P<up>(?:\.\./)+)(?P<path>(?:benchmarks|client|deploy|examples)/[^)#\s]+)"
    r"(?P<anchor>#[^)\s]*)?\)"
)
_PAGE_OF_THE_SITE = re.compile(r"(?:deploy|examples)/(?:[^)]*/)?README\.md")
_FILE_BESIDE_A_README = re.compile(
    r"\[([^\]]+)\]\([^)]*\.(?:cc|cfg|conf|go|java|py|service|ts|yaml)\)"
)
_LINK = re.compile(r"""<(?:a|link|script|img)\b[^>]*?\b(?:href|src)=["']?([^"'\s>]+)""")
_SCHEME = re.compile(r"(?:[a-z][a-z+.-]*:|//|#)", re.IGNORECASE)
_log = logging.getLogger("mkdocs.hooks.docs_links")


def on_page_markdown(markdown: str, *, config: Any = None, **_: Any) -> str:
    """Rewrites links to files of the repository.

    Files that are no pages of the site are linked in the repository if its address is known, and
    named without a link otherwise.
    """
    repository = config.repo_url if config else ""

    def rewritten(link: re.Match[str]) -> str:
        path = link["path"]
        anchor = link["anchor"] or ""
        if _PAGE_OF_THE_SITE.fullmatch(path):
            return f"[{link[1]}]({link['up'][3:]}{path}{anchor})"
        if repository:
            return f"[{link[1]}]({repository.rstrip('/')}/blob/main/{path}{anchor})"
        # Results of benchmarks are records: their texts do not name them.
        return f"{link[1]}, `{path}`" if path.startswith("benchmarks/") else link[1]

    markdown = _REPOSITORY_FILE.sub(rewritten, markdown)
    markdown = re.sub(r"\]\(\.\./docs/", "](../", markdown)
    return _FILE_BESIDE_A_README.sub(
        lambda link: link[0] if "://" in link[0] else link[1], markdown
    )


def on_post_build(config: Any, **_: Any) -> None:
    """Logs a warning, which ends a strict build, for each link to a file that the site lacks.

    mkdocs itself only mentions links to files that `exclude_docs` leaves out.
    """
    for page, link in dead_links(Path(config.site_dir)):
        _log.warning("%s links to %s, which the site does not have", page, link)


def dead_links(site: Path) -> list[tuple[Path, str]]:
    """Returns the pages with links to files of the site that do not exist, and these links."""
    dead = []
    for page in sorted(site.rglob("*.html")):
        for link in _LINK.findall(page.read_text()):
            if _SCHEME.match(link):
                continue
            path = unquote(re.split("[?#]", unescape(link))[0])
            folder = site if path.startswith("/") else page.parent
            if not (folder / path.lstrip("/")).exists():
                dead.append((page.relative_to(site), link))
    return dead
