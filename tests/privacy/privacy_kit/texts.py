"""A marker for each kind of sensitive text, and a search that also sees it encoded."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Final

from remand_workers.surfaces import Kind

MARKERS: Final = {kind: f"Zq{kind.name.lower()}{7_000 + 37 * number}x" for number, kind in enumerate(Kind)}
"""One word each, of letters and digits: no escaping of any format changes it, and no rule about names stops it."""

CONTROL: Final = "Zqcontrol9x"
"""In the names of runs, pipelines, validators and workers: a reader that does not see it reads nothing."""


def planted(kind: Kind, about: str = "") -> str:
    """A text of this kind, its marker at both ends, so that cutting it at either leaves one."""
    return f"{MARKERS[kind]} {about or 'a text'} that nobody else may read {MARKERS[kind]}"


def _spellings(marker: str) -> Iterable[bytes]:
    plain = marker.encode()
    yield plain.lower()
    yield plain[::-1].lower()
    yield plain.hex().encode()
    yield marker.encode("utf-16-le").lower()
    for before in range(3):
        # Inside base64 a text has one of three spellings; characters at its ends depend on the neighbours, too.
        coded = base64.b64encode(b"\0" * before + plain)
        yield coded[-(-before * 8 // 6) : (before + len(plain)) * 8 // 6].lower()


_SPELLINGS: Final = {kind: tuple(_spellings(marker)) for kind, marker in MARKERS.items()}


def kinds_in(data: bytes) -> frozenset[Kind]:
    """The kinds whose marker is in `data`: plain in any case, reversed, as hex, UTF-16 or base64."""
    small = data.lower()
    return frozenset(
        kind for kind, spellings in _SPELLINGS.items() if any(spelled in small for spelled in spellings)
    )


def around(data: bytes, kind: Kind, *, width: int = 240) -> str:
    """What stands around the first marker of `kind`, for the message of a failed test."""
    small = data.lower()
    at = min(place for spelled in _SPELLINGS[kind] if (place := small.find(spelled)) >= 0)
    return data[max(at - width, 0) : at + width].decode(errors="backslashreplace")
