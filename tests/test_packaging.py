"""The page of the package in an index: no broken links, and the addresses of the repository it was cloned from."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[1]
ADDRESS = "https://host.example/owner/penstock"


def checkout(directory: Path, origin: str) -> Path:
    """What a package is built from, as a checkout that was cloned from `origin`."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, directory / name)
    (directory / "src" / "penstock").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "penstock" / "__init__.py", directory / "src" / "penstock" / "__init__.py")
    subprocess.run(["git", "init", "-q"], cwd=directory, check=True)
    subprocess.run(["git", "remote", "add", "origin", origin], cwd=directory, check=True)
    return directory


def links(page: str) -> list[str]:
    return re.findall(r"\]\(([^)]*)\)", page)


@pytest.mark.parametrize(
    "origin",
    [
        f"{ADDRESS}.git",
        f"{ADDRESS}/",
        "https://user:secret@host.example/owner/penstock.git",
        "git@host.example:owner/penstock.git",
        "ssh://git@host.example:2222/owner/penstock",
    ],
)
def test_the_packages_page_links_into_its_repository(tmp_path: Path, origin: str) -> None:
    metadata = ProjectMetadata(str(checkout(tmp_path, origin)), PluginManager())
    assert metadata.core.urls == {
        "Repository": ADDRESS,
        "Documentation": f"{ADDRESS}/tree/main/docs",
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
    }
    files = [
        re.sub("(blob|raw)/main/", "", link.removeprefix(f"{ADDRESS}/")).partition("#")[0]
        for link in links(metadata.core.readme)
        if link.startswith(ADDRESS)
    ]
    assert {"CONTRIBUTING.md", "docs/assets/from-storage-to-replicas.svg"} <= set(files)
    for file in files:
        assert (ROOT / file).exists(), file
    assert all(link.startswith("https://") for link in links(metadata.core.readme))


@pytest.mark.parametrize(
    "origin", ["/srv/git/penstock", "../penstock", "file:///srv/penstock.git", "http://localhost/penstock"]
)
def test_a_checkout_without_a_public_address_builds_a_page_without_links(tmp_path: Path, origin: str) -> None:
    metadata = ProjectMetadata(str(checkout(tmp_path, origin)), PluginManager())
    assert metadata.core.urls == {}
    assert "operators" in metadata.core.readme
    assert ".svg" not in metadata.core.readme
    assert all(link.startswith("https://") for link in links(metadata.core.readme))


@pytest.mark.slow
def test_a_wheel_from_an_unpacked_sdist_keeps_the_addresses(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    root = checkout(tmp_path / "checkout", f"{ADDRESS}.git")
    sdist = next(SdistBuilder(str(root)).build(directory=str(tmp_path)))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    wheel = next(WheelBuilder(sdist.removesuffix(".tar.gz")).build(directory=str(tmp_path)))
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        fields = Parser().parsestr(archive.read(name).decode())
    assert fields.get_all("Project-URL")[:1] == [f"Repository, {ADDRESS}"]
    assert f"{ADDRESS}/blob/main/CONTRIBUTING.md" in fields.get_payload()


def test_actions_are_pinned_by_commit() -> None:
    workflows = "\n".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    used = re.findall(r"uses: (.*)", workflows)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", action)] == []


def test_a_tag_of_the_version_has_notes_and_another_tag_is_refused() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()

    def notes_of(tag: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, ROOT / "tests" / "release_notes.py", tag], capture_output=True, text=True
        )

    assert "### Datasets" in notes_of(f"v{version}").stdout
    other = notes_of("v9.9")
    assert (other.returncode, other.stderr) == (
        1,
        f"expected the tag v{version}, by the version in pyproject.toml, got v9.9\n",
    )
