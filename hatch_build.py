"""The package's page in an index: the project's address, and the README with links that work there.

An index has none of the files that the README's relative links name, so they become links into the public repository.
Its address is the one that this checkout was cloned from: a fork's package points to the fork, and no address has to be
kept in a file. A checkout without a public one (a local clone) builds a package without these links.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")
_RELATIVE_IMAGE = re.compile(r"!\[([^\]]+)\]\((?!https?://)([^)]+)\)")
# What a link must not take over: a user's name, a password, the port of SSH.
_HTTPS = re.compile(r"https://(?:[^@/]*@)?([\w-]+(?:\.[\w-]+)+(?::\d+)?)/([\w./~-]+)")
_SSH = re.compile(r"(?:ssh://)?(?:[\w.-]+@)([\w-]+(?:\.[\w-]+)+)(?::\d+/|[:/])([\w./~-]+)")


def public_address(remote: str) -> str:
    """The repository's page for what `git remote get-url` prints; empty where that is no public host."""
    match = _HTTPS.fullmatch(remote) or _SSH.fullmatch(remote)
    return f"https://{match[1]}/{match[2].strip('/').removesuffix('.git')}" if match else ""


def cloned_from(root: Path) -> str:
    """What git calls `origin` in this checkout; empty without git, without a checkout, or without an origin."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    found = subprocess.run(
        ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def readme(text: str, repository: str) -> str:
    """The text with links into the files of a repository; without these and images where its address is empty."""
    if not repository:
        return _RELATIVE_LINK.sub(r"\1", _RELATIVE_IMAGE.sub("", text))
    text = _RELATIVE_IMAGE.sub(rf"![\1]({repository}/raw/main/\2)", text)
    return _RELATIVE_LINK.sub(rf"[\1]({repository}/blob/main/\2)", text)


class ReadmeHook(MetadataHookInterface):
    """Gives `readme` and, where the repository has a public address, `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        repository = public_address(cloned_from(root))
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": readme((root / "README.md").read_text("utf-8"), repository),
        }
        metadata["urls"] = (
            {
                "Repository": repository,
                "Documentation": f"{repository}/tree/main/docs",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
            if repository
            else {}
        )
