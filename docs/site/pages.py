"""A hook of MkDocs: pages from outside of docs/, their links, and doctests with the colours of a Python session.

The same Markdown is read in the repository and on the site. So links are written as the repository needs them, and this
hook turns those that lead out of docs/ into links of the site. The site has no page for a file of code: its name is
shown instead.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
LINK = re.compile(
    r"\[(?P<text>[^\]]*)\]\((?!\w+:)(?P<target>[^)#\s]+)(?P<heading>#[^)]*)?\)"
)
SESSION = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page with links of the site."""
    place = (
        page.file.src_uri
        if page.file.src_uri in OUTSIDE
        else f"docs/{page.file.src_uri}"
    )

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(place).parent / found["target"])
        if (ROOT / target).is_dir():
            target = f"{target}/README.md"
        if not (ROOT / target).exists():
            return found[0]  # MkDocs says that it is broken
        if target not in OUTSIDE and not target.startswith("docs/"):
            return found["text"]
        here = PurePosixPath(page.file.src_uri).parent
        return f"[{found['text']}]({os.path.relpath(target.removeprefix('docs/'), here)}{found['heading'] or ''})"

    return SESSION.sub("```pycon\n", LINK.sub(link, markdown))
