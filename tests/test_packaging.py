"""The page of the package in an index has no broken links."""

import re
from pathlib import Path
from typing import Any

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("repository", ["", "https://host.example/owner/penstock/"])
def test_the_page_of_the_package_has_no_broken_links(repository: str) -> None:
    metadata: Any = ProjectMetadata(str(ROOT), PluginManager())
    metadata.hatch.metadata.hook_config["custom"]["repository"] = repository
    page = metadata.core.readme
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert all(link.startswith("https://") for link in links)
    assert "operators" in page
    if repository:
        assert f"{repository}blob/main/CONTRIBUTING.md" in links
        assert metadata.core.urls == {"Repository": repository.rstrip("/")}
    for link in links:
        if repository and link.startswith(repository):
            assert (ROOT / link.removeprefix(f"{repository}blob/main/").partition("#")[0]).exists()
