"""Hooks of MkDocs: the files beside docs/ are pages of the site, too."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[(?P<text>[^\]\[]+)\]\((?P<target>[^)#:\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are no files of docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Returns a page with the links of the repository as links of the site; other files stay words."""
    names = {page: name for name, page in PAGES.items()}
    here = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def in_site(link: re.Match[str]) -> str:
        if not link["target"]:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["target"]))
        target = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is None:
            return link["text"]
        relative = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{link['text']}]({relative}{link['anchor'] or ''})"

    return LINK.sub(in_site, markdown)
