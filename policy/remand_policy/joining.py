"""When two clusters become one: what judgements about their members weigh, against how alike they looked before.

A matcher errs, and closure over its errors joins everything with everything. So two clusters are joined only where
most of the pairs judged between them agree, and where the odds are better the more pairs a wrong join would spoil.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

FALSE_POSITIVES: Final = 0.01
"""How often a matcher is taken to call two different entries the same."""
FALSE_NEGATIVES: Final = 0.05
"""How often it is taken to miss two that are the same."""
UNLIKELY: Final = 0.002
"""The chance that two entries are the same that nothing suggested to compare: they only shared a prompt."""
_FOR: Final = math.log((1 - FALSE_NEGATIVES) / FALSE_POSITIVES)
_AGAINST: Final = math.log((1 - FALSE_POSITIVES) / FALSE_NEGATIVES)
_BEST_PRIOR: Final = 0.999


@dataclass(frozen=True, slots=True)
class Evidence:
    """Judgements of pairs between two clusters: how many said the same, how many different.

    `prior` is the best chance, from 0 to 1, that blocking gave any of these pairs before they were judged.
    """

    positive: int = 0
    negative: int = 0
    prior: float = UNLIKELY

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(
            self.positive + other.positive, self.negative + other.negative, max(self.prior, other.prior)
        )

    @property
    def judged(self) -> int:
        """How many pairs were judged."""
        return self.positive + self.negative

    @property
    def log_odds(self) -> float:
        """The natural logarithm of the odds that the clusters are the same."""
        prior = min(max(self.prior, UNLIKELY), _BEST_PRIOR)
        return math.log(prior / (1 - prior)) + self.positive * _FOR - self.negative * _AGAINST

    @property
    def chance(self) -> float:
        """The chance that the clusters are the same, from 0 to 1."""
        return 1 / (1 + math.exp(-max(-50.0, min(50.0, self.log_odds))))

    def joins(self, left: int, right: int) -> bool:
        """Whether clusters of `left` and `right` members may become one.

        Most of the judged pairs must agree, and the chance of a mistake must be below one in twice the number of
        pairs that it would spoil.
        """
        return self.positive > self.negative and self.log_odds > math.log(2 * left * right - 1)
