"""Check the documentation: every relative link in a Markdown file leads to a file, and every anchor to a heading.

Standard library only; it reads files under version control's root and opens no connection. Exit status 1 and one line
for each broken link, 0 if there is none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_FENCE = re.compile(r"^\s*(```|~~~).*?^\s*\1", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def pages() -> list[Path]:
    """The Markdown files of the project, without environments and hidden folders."""
    found = [*ROOT.glob("*.md")]
    for folder in ("docs", "examples", "deploy", "bench"):
        found += (ROOT / folder).rglob("*.md")
    return sorted(
        path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


def prose(text: str) -> str:
    """The text without code, where brackets mean something else."""
    return _CODE.sub("", _FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The names that headings can be linked by, as GitHub makes them."""
    names: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text("utf-8"))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = base = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        again = 0
        while name in names:
            again += 1
            name = f"{base}-{again}"
        names.add(name)
    return names


def broken(page: Path) -> Iterator[str]:
    """What is wrong with the links of one page."""
    for link in _LINK.findall(prose(page.read_text("utf-8"))):
        if re.match(r"[a-z][a-z0-9+.\-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: no file for {link!r}"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: no heading for {link!r}"


def main() -> int:
    """Check all pages and say what is broken."""
    checked = pages()
    problems = [problem for page in checked for problem in broken(page)]
    for problem in problems:
        sys.stderr.write(problem + "\n")
    sys.stdout.write(f"{len(checked)} pages checked, {len(problems)} broken links\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
