"""The documentation as a site: it builds strictly, each link and anchor leads somewhere, nothing is loaded from elsewhere.

Pages that are made from the code are what the code says; pictures can be read, by eyes and by machines.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

from nereus.cli.reference.pages import PAGES
from nereus.cli.reference.pages import page as page_of
from nereus.cli.reference.tables import docstrings
from nereus.policy.admission import Code

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"
LOADS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that make a browser fetch something when the page is opened."""


@dataclass(slots=True)
class Page(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    without_alt: int = 0

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.without_alt += tag == "img" and not given.get("alt")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADS and LOADS[tag] in given and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    tool = str(Path(sys.executable).with_name("zensical"))
    done = subprocess.run([tool, "build", "--strict"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {}
    for path in site.rglob("*.html"):
        found[path] = Page()
        found[path].feed(path.read_text(encoding="utf-8"))
    return found


def target(site: Path, page: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor that a link leads to; None if it leads out of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    start = site if parts.path.startswith("/") else page.parent
    path = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else page.resolve()
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)


def broken(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    anchors = {path.resolve(): page.anchors for path, page in pages.items()}
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in (*page.links, *page.loads):
            led = target(site, path, link)
            if led is not None and (not led[0].exists() or (led[1] and led[1] not in anchors.get(led[0], set()))):
                yield f"{path.relative_to(site)}: {link}"


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor(site: Path, pages: dict[Path, Page]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert sorted(set(broken(site, pages))) == []


def test_broken_link_and_anchor_are_found(site: Path, pages: dict[Path, Page]) -> None:
    wrong = Page()
    wrong.feed('<a href="../nowhere/">a</a> <a href="../glossary/#nowhere">b</a> <a href="../glossary/#glossary">c</a>')
    found = broken(site, {**pages, site / "api" / "wrong.html": wrong})
    assert [line for line in found if "wrong.html" in line] == [
        "api/wrong.html: ../nowhere/",
        "api/wrong.html: ../glossary/#nowhere",
    ]


def test_site_loads_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if target(site, site, load) is None} == set()


def test_images_say_what_they_show(pages: dict[Path, Page]) -> None:
    assert {path: page.without_alt for path, page in pages.items() if page.without_alt} == {}


def documents() -> set[str]:
    return {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def navigated(entries: list[dict[str, object]]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, list):
                yield from navigated(value)
            else:
                yield str(value)


def test_navigation_has_every_document_once_and_decisions_by_their_list() -> None:
    nav = list(navigated(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]))
    assert len(set(nav)) == len(nav)
    assert set(nav) == {name for name in documents() if not name.startswith("decisions/")}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_code_says(name: str) -> None:
    assert page_of(name, DOCS) == (DOCS / name).read_text(encoding="utf-8"), "`make reference` writes it anew"


def test_every_verdict_has_a_meaning() -> None:
    assert {name for name, meaning in docstrings(Code).items() if len(meaning) > 20} == {code.name for code in Code}


@pytest.mark.parametrize("path", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_picture_is_used_has_a_description_and_colours_for_light_and_dark(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.findtext(f"{SVG}title")
    assert len(root.findtext(f"{SVG}desc") or "") > 50
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    assert re.findall(r"(?:href|src|url)\W+https?:", path.read_text(encoding="utf-8")) == []
    assert any(f"pictures/{path.name})" in (DOCS / name).read_text(encoding="utf-8") for name in documents())
