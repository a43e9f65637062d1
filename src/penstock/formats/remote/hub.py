"""Names of files on Hugging Face's hub, at a commit: a branch moves. Apart, because its package may be missing."""

from typing import Any

from huggingface_hub import HfApi, HfFileSystem

PROTOCOL = "hf"


def pinned(name: str) -> str:
    """A name or pattern in a repository, at the commit of its branch or tag now; that of a bucket as it is.

    Raises:
        OSError: there is no such repository or branch, or the hub does not answer.
    """
    found: Any = HfFileSystem().resolve_path(name)
    if not hasattr(found, "repo_id"):  # a bucket has no commits
        return name
    about = HfApi().repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision)
    kind = "" if found.repo_type == "model" else f"{found.repo_type}s/"
    return f"{PROTOCOL}://{kind}{found.repo_id}@{about.sha}/{found.path_in_repo}"
