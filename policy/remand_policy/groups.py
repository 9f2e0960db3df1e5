"""What can be wrong with proposed groups of duplicates, whatever the records are: ids and sizes.

A proposal speaks of records by the local ids of one prompt, `r1`, `r2` and so on. A group with a fault is left out
whole, so nothing is half applied; what is left is disjoint and lies within the prompt. Which records may be one is for
typed rules to say, not for this module.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from .correction import ELLIPSIS, Bounds, clean, cut, guidance_room

LOCAL_ID: Final = re.compile(r"r[0-9]{1,9}")
_IDS_SHOWN: Final = 8
_QUOTED: Final = 24
_RULE: Final = 64


class Fault(StrEnum):
    """What is wrong with the ids or the size of a group."""

    UNKNOWN_ID = "unknown_id"
    """No id of this form exists."""
    OUTSIDE_ID = "outside_id"
    """A well-formed id of no record in this prompt."""
    REPEATED_ID = "repeated_id"
    """A record named more than once: in two groups, twice in one, or in a group and as apart or unsure."""
    GROUP_OF_ONE = "group_of_one"
    OVERSIZED = "oversized"
    UNACCOUNTED = "unaccounted"
    """A record named nowhere, in a proposal that says which ones are apart."""


@dataclass(frozen=True, slots=True, repr=False)
class Defect:
    """Why a group was left out: a `Fault`, or the name of a registry's rule with its description as `words`.

    `group` counts from 1 as the model gave the groups, the unsure ones apart; without one the defect is about the
    whole proposal. `ids` may be the model's own words, so the representation leaves them out.
    """

    rule: str
    group: int | None
    ids: tuple[str, ...]
    words: str = ""
    unsure: bool = False

    def __repr__(self) -> str:
        return f"Defect(rule={self.rule!r}, group={self.group}, <{len(self.ids)} ids>, unsure={self.unsure})"


@dataclass(frozen=True, slots=True, repr=False)
class Grouping:
    """A proposal: records that are the same, those that match no other, those that may be the same.

    `apart` is `None` where the proposal does not list them: then every record that it does not name is apart.
    """

    groups: tuple[tuple[str, ...], ...]
    apart: tuple[str, ...] | None = None
    unsure: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        apart = "unsaid" if self.apart is None else len(self.apart)
        return f"Grouping(<{len(self.groups)} groups>, apart={apart}, <{len(self.unsure)} unsure>)"


@dataclass(frozen=True, slots=True)
class Checked:
    """The groups without a fault, each in the order of the prompt, and what is wrong with the rest."""

    safe: tuple[tuple[str, ...], ...]
    unsure: tuple[tuple[str, ...], ...]
    defects: tuple[Defect, ...]


def check_groups(grouping: Grouping, ids: Sequence[str], *, largest: int) -> Checked:
    """`grouping` checked against the `ids` of the prompt, in their order. A group has 2 to `largest` records."""
    place = {name: position for position, name in enumerate(ids)}
    named = Counter(
        name for part in (*grouping.groups, *grouping.unsure, grouping.apart or ()) for name in part
    )
    defects: list[Defect] = []

    def without_fault(groups: Sequence[Sequence[str]], *, unsure: bool) -> tuple[tuple[str, ...], ...]:
        kept: list[tuple[str, ...]] = []
        for number, group in enumerate(groups, start=1):
            found = list(_foreign(group, place))
            repeated = [name for name in group if name in place and named[name] > 1]
            if repeated:
                found.append((Fault.REPEATED_ID, repeated))
            if len(group) < 2:
                found.append((Fault.GROUP_OF_ONE, group))
            if len(set(group)) > largest:
                found.append((Fault.OVERSIZED, group))
            defects.extend(Defect(fault, number, _once(names), unsure=unsure) for fault, names in found)
            if not found:
                kept.append(tuple(sorted(group, key=place.__getitem__)))
        return tuple(sorted(kept, key=lambda group: place[group[0]]))

    safe = without_fault(grouping.groups, unsure=False)
    unsure = without_fault(grouping.unsure, unsure=True)
    if grouping.apart is not None:
        found = list(_foreign(grouping.apart, place))
        repeated = [name for name, times in Counter(grouping.apart).items() if times > 1 and name in place]
        if repeated:
            found.append((Fault.REPEATED_ID, repeated))
        missing = [name for name in ids if not named[name]]
        if missing:
            found.append((Fault.UNACCOUNTED, missing))
        defects.extend(Defect(fault, None, _once(names)) for fault, names in found)
    return Checked(safe, unsure, tuple(defects))


def _foreign(names: Sequence[str], place: Mapping[str, int]) -> Iterator[tuple[Fault, Sequence[str]]]:
    """The ids that no record of the prompt has, by kind."""
    strangers = [name for name in names if name not in place]
    for fault, well_formed in ((Fault.UNKNOWN_ID, False), (Fault.OUTSIDE_ID, True)):
        of_kind = [name for name in strangers if (LOCAL_ID.fullmatch(name) is not None) == well_formed]
        if of_kind:
            yield fault, of_kind


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


# -------------------------------------------------------------------------------------------- rendering

_ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        Fault.UNKNOWN_ID: "no record has this id. Use only the ids that the records are given with.",
        Fault.OUTSIDE_ID: "no record of this request has this id. Use only the ids that the records are given with.",
        Fault.REPEATED_ID: "named more than once. Name each record once at most.",
        Fault.GROUP_OF_ONE: "a group has two records or more. Leave a record that matches no other out of the groups.",
        Fault.OVERSIZED: "the group is larger than it may be. Group only records that are the same.",
        Fault.UNACCOUNTED: "named nowhere. Name each record once: in a group, as unsure, or as apart.",
    }
)
_FORBIDDEN: Final = "these records must not be in one group. Keep them in different groups, or apart."
_KEEP: Final = "What is not named here can stay as it is."


def render_defects(defects: Sequence[Defect], bounds: Bounds | None = None) -> str:
    """What is wrong and what to do, one line a defect, as a retry request's guidance. The same defects, the same bytes.

    At most `bounds.findings` lines of `bounds.finding` characters, and as many as a correction of `bounds.total` has
    room for; how many are left out is said. Ids that the model made up are quoted in short.
    """
    bounds = bounds or Bounds()
    lines: list[str] = []
    room = guidance_room(bounds)
    for number, defect in enumerate(defects, start=1):
        more = f"{ELLIPSIS} {len(defects) - number + 1} more"
        line = cut(f"- {_say(defect)}", min(bounds.finding, room - len(more) - 1))
        if number > bounds.findings or len("\n".join([*lines, line, more])) > room:
            lines.append(more)
            break
        lines.append(line)
    else:
        if len("\n".join([*lines, _KEEP])) <= room:
            lines.append(_KEEP)
    return "\n".join(lines)


def _say(defect: Defect) -> str:
    kind = "unsure group" if defect.unsure else "group"
    subject = "The answer" if defect.group is None else f"{kind.capitalize()} {defect.group}"
    shown = ", ".join(map(_shown, defect.ids[:_IDS_SHOWN]))
    if len(defect.ids) > _IDS_SHOWN:
        shown += f", {ELLIPSIS} {len(defect.ids) - _IDS_SHOWN} more"
    advice = _ADVICE.get(defect.rule, _FORBIDDEN)
    said = f"{subject} breaks the rule {_one_line(defect.rule, _RULE)} ({shown or 'no ids'}): {advice}"
    return f"{said} {_one_line(defect.words, len(defect.words))}".rstrip()


def _shown(name: str) -> str:
    return name if LOCAL_ID.fullmatch(name) else json.dumps(_one_line(name, _QUOTED))


def _one_line(text: str, limit: int) -> str:
    """`text` on one line without backticks, which make fences, in at most `limit` characters."""
    return cut(" ".join(clean(text).replace("`", "'").split()), limit)
