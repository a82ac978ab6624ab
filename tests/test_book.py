"""The built book: whole, strict, and loading nothing from the network."""

import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LOADED_LINKS = {"stylesheet", "preload", "modulepreload", "icon", "shortcut", "manifest"}


class Page(HTMLParser):
    """What a page loads, where it links to, and its anchors."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.anchors, self.without_alt = [], [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = defaultdict(str, {name: value or "" for name, value in attrs})
        self.anchors |= {attrs["id"], attrs["name"]}
        if tag == "a" and attrs["href"]:
            self.links.append(attrs["href"])
        if tag == "link" and set(attrs["rel"].split()) & LOADED_LINKS:
            self.loads.append(attrs["href"])
        self.loads += [attrs[name] for name in ("src", "data", "poster") if attrs[name]]
        self.loads += [part.split()[0] for part in attrs["srcset"].split(",") if part.strip()]
        if tag == "img" and "alt" not in attrs:
            self.without_alt.append(attrs["src"])


@pytest.fixture(scope="module")
def pages(html):
    return {
        path: Page(path) for path in sorted(html.rglob("*.html")) if "_static" not in path.parts
    }


def test_every_page_of_the_contents_is_built(html):
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    names = re.findall(r"'(?:file|root)': '([^']+)'", repr(toc))
    assert names
    assert [n for n in ["index", *names] if not (html / f"{n}.html").is_file()] == []


def test_nothing_is_loaded_from_the_network(html, pages):
    loads = [(str(path), url) for path, page in pages.items() for url in page.loads]
    assert any(url.endswith("tex-chtml.js") for _, url in loads) or not has_equations(html)
    assert [entry for entry in loads if is_remote(entry[1])] == []
    for sheet in html.rglob("*.css"):
        urls = re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""", sheet.read_text("utf-8"))
        assert [url for url in urls if is_remote(url)] == [], sheet
    assert not any("binder" in path.read_text("utf-8").lower() for path in html.glob("intro.html"))


def has_equations(html):
    return any('class="math' in path.read_text("utf-8") for path in html.rglob("*.html"))


def is_remote(url):
    return urlsplit(url).scheme in ("http", "https") or url.startswith("//")


def test_links_and_images_lead_somewhere(html, pages):
    broken = []
    for path, page in pages.items():
        for url in page.links + page.loads:
            parts = urlsplit(url)
            if parts.scheme or url.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            exists = target.is_file()
            if exists and parts.fragment and target in pages:
                exists = unquote(parts.fragment) in pages[target].anchors
            if not exists:
                broken.append(f"{path.relative_to(html)}: {url}")
    assert broken == []


def test_every_image_says_what_it_shows(pages):
    assert [url for page in pages.values() for url in page.without_alt] == []
