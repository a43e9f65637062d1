"""The README as package indexes show it: they have none of the files that its relative links name."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")


def readme(text: str, repository: str) -> str:
    """The text with links into the files of a repository; without any such links where its address is empty."""
    if not repository:
        return _RELATIVE_LINK.sub(r"\1", text)
    return _RELATIVE_LINK.sub(rf"[\1]({repository}/blob/main/\2)", text)


class ReadmeHook(MetadataHookInterface):
    """Gives `readme` and, where the address of the repository is known, `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"].rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, repository)}
        metadata["urls"] = {"Repository": repository} if repository else {}
