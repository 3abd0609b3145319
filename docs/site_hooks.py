"""Hooks of the documentation site: pages that lie outside docs/, and links to them.

The documents are written for a reader of the repository, so they link to source files, to results/ and to documents of
the root. On the site, the documents of the root are pages, a linked source file is a page with its code, and any other
file is named by its path.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ROOT_PAGES = ("REPRODUCTION.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
MARKER = re.compile(r"^<!-- (table: \S+|end|generated .*) -->\n", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the documents of the root and every source file that a document links to."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    linked = {target for page in files.documentation_pages() for target in _source_files(page)}
    for path in sorted(linked):
        files.append(File.generated(config, _source_page(path), content=_source_text(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to pages of the site, and leave out the markers of generated tables."""
    here = page.file.src_uri

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = _in_repository(here, target)
        if "://" in target or target.startswith("mailto:") or path is None:
            return match[0]
        uri = _site_uri(path, files)
        if uri is None:
            return f"{text} (`{path}`)" if path not in text else text
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor})"

    if here.startswith("source/"):
        return markdown
    return LINK.sub(replaced, MARKER.sub("", markdown))


def _in_repository(here: str, target: str) -> str | None:
    """Return the path of a link's target below the repository; None if it is not there."""
    base = ROOT if here in ROOT_PAGES else (ROOT / "docs" / here).parent
    path = Path(os.path.normpath(base / target))
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) and path.exists() else None


def _site_uri(path: str, files: Files) -> str | None:
    """Return the page or file of the site that shows a file of the repository."""
    candidates = [path.removeprefix("docs/"), path, _source_page(path)]
    return next((uri for uri in candidates if files.get_file_from_path(uri)), None)


def _source_files(page: File) -> set[str]:
    paths = {_in_repository(page.src_uri, match[2]) for match in LINK.finditer(page.content_string)}
    return {path for path in paths if path and path.endswith(".py") and (ROOT / path).is_file()}


def _source_page(path: str) -> str:
    return f"source/{path}.md"


def _source_text(path: str) -> str:
    code = (ROOT / path).read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n# {path}\n\n``````python\n{code}``````\n"
