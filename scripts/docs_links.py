"""A hook of mkdocs: links that leave `docs/` in the repository lead to pages of the site or to the
published repository.
"""

from __future__ import annotations

import re
from typing import Any

_REPOSITORY_FILE = re.compile(
    r"\[([^\]]+)\]\((?P<up>(?:\.\./)+)(?P<path>(?:benchmarks|client|deploy|examples)/[^)#\s]+)"
    r"(?P<anchor>#[^)\s]*)?\)"
)
_PAGE_OF_THE_SITE = re.compile(r"(?:deploy|examples)/(?:[^)]*/)?README\.md")
_FILE_BESIDE_A_README = re.compile(
    r"\[([^\]]+)\]\([^)]*\.(?:cc|cfg|conf|go|java|py|service|ts|yaml)\)"
)


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Rewrites links to files of the repository.

    Files that are no pages of the site are linked in the repository if its address is known, and
    named without a link otherwise.
    """
    repository = config.repo_url

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
