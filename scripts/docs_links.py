"""A hook of mkdocs: links that leave `docs/` in the repository lead to the pages that the site has
of them.
"""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrites links to examples and deployment files; files that are no pages are named without a
    link.
    """
    markdown = re.sub(
        r"\]\(((?:\.\./)+)(examples|deploy)/", lambda link: f"]({link[1][3:]}{link[2]}/", markdown
    )
    markdown = re.sub(r"\]\(\.\./docs/", "](../", markdown)
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./)+client/[^)]*\)", r"`\1`", markdown)
    # Results of benchmarks are records, not pages: the site names their files.
    markdown = re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+(benchmarks/results/[^)#]+)[^)]*\)", r"\1, `\2`", markdown
    )
    return re.sub(
        r"\[([^\]]+)\]\([^)]*\.(?:cc|cfg|conf|go|java|py|service|ts|yaml)\)", r"\1", markdown
    )
