"""Text as it is compared: what does not tell two entries apart is taken out. Pure, and the same in every process."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_DOTS: Final = re.compile("i\u0307+")
_KEPT: Final = frozenset("#%")


class _Spacing(dict[int, int | str | None]):
    """For `str.translate`: punctuation and controls become spaces, what is invisible goes, the rest stays."""

    def __missing__(self, point: int) -> int | str | None:
        character = chr(point)
        kind = unicodedata.category(character)
        becomes: int | str | None = point
        if kind == "Cf":
            becomes = None
        elif kind in ("Sk", "Cc") or (
            kind[0] in "PZ" and unicodedata.normalize("NFKC", character) not in _KEPT
        ):
            becomes = " "
        if len(self) < 20_000:
            self[point] = becomes
        return becomes


_SPACING: Final = _Spacing()


def normal(text: str) -> str:
    """`text` without what does not tell two entries apart: case, width, composition, punctuation, white space.

    NFKC, case folding, punctuation to spaces, white space joined. Accents stay, and so do `#` and `%`, which change
    what a word means. The four letters I of Turkish become one, for capitals do not say which of two was meant.
    """
    if text.isascii():
        return " ".join(text.translate(_SPACING).casefold().split())
    folded = unicodedata.normalize("NFD", text.translate(_SPACING)).casefold()
    folded = unicodedata.normalize("NFKC", folded).casefold().replace("ı", "i")
    return " ".join(unicodedata.normalize("NFKC", _DOTS.sub("i", folded).translate(_SPACING)).split())
