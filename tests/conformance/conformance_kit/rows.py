"""The table: every row that every driver must pass, by number, and the drivers it runs on.

A row is one sentence of "given this, expect that". Its scenario is the test that carries the same number in `@row`;
`test_index.py` fails for a row without one. Rows that need real processes run on workers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LOCAL: Final = "local"
WORKERS: Final = "workers"


@dataclass(frozen=True, slots=True)
class Row:
    """What must hold, and on which drivers."""

    says: str
    drivers: tuple[str, ...] = (LOCAL, WORKERS)


_ALONE = (WORKERS,)

TABLES: Final[dict[str, dict[str, Row]]] = {
    "Verdicts": {
        "V1": Row("a validator that always raises ends incomplete after one generation, with a warning"),
        "V2": Row("the same under fail_run fails item and run"),
        "V3": Row("one that raises once and then accepts is accepted without another generation"),
        "V4": Row("one that raises and then rejects corrects with that rejection only"),
        "V5": Row("a broken validator beside a rejecting one: the correction names the rejection alone"),
        "V6": Row("broken on attempt 1 only, rejected on attempt 1 only: accepted after two generations"),
        "V7": Row("every validator runs after a rejection, findings aggregate in configured order"),
        "V8": Row("any return value that is no verdict is undetermined, neither a pass nor a rejection"),
        "V9": Row("validators that hang are given up in time, and the process goes on serving"),
        "V10": Row("a judge whose own reply cannot be parsed is undetermined, and the producer never hears"),
        "V11": Row("async validators are awaited and give the same verdicts"),
        "V12": Row("a validator that changes the candidate changes its own copy only"),
        "V14": Row("undetermined on the last attempt closes as validator_execution_failure, no budget named"),
        "V15": Row("undetermined verdicts are counted apart from rejections"),
        "V16": Row("a verdict has no truth value, an incomplete outcome is false"),
    },
    "Corrections": {
        "C1": Row("each corrected request is the ordinary one and two messages, about the latest response"),
        "C2": Row("the same report gives the same guidance bytes in another process"),
        "C3": Row("guidance is bounded, its cuts are marked, and it is valid Unicode"),
        "C4": Row("after a repair the assistant message is the reply that finally parsed"),
        "C5": Row("a hostile finding stays inside one fenced user message"),
        "C6": Row("reason codes, operator messages and exception texts reach no request"),
        "C7": Row("a producer without the protocol gets no correction"),
        "C8": Row("an empty reply or a tool call alone is structural, and nothing is built from it"),
        "C9": Row("nothing is rendered after the last attempt"),
        "C10": Row("a correction that expired unread: the same attempt, fresh, with a warning", _ALONE),
        "C11": Row("a structural failure drops the pending correction"),
        "C12": Row("a connection error keeps the pending correction"),
        "C13": Row("a declared protocol without a usable response is a contract failure"),
    },
    "Budgets": {
        "B1": Row("retries 0 is exactly one generation"),
        "B2": Row("negative budgets are refused when loaded, naming the field"),
        "B3": Row("outer retries and repairs multiply, and every attempt begins with the ordinary request"),
        "B4": Row("structural failures and rejections share the outer budget"),
        "B5": Row("throttling spends no budget, and its waits are honoured"),
        "B6": Row("provider errors are retried with a backoff between them"),
        "B7": Row("the server counts exactly the generations that the outcome says"),
        "B8": Row("the same pipeline run twice has the same budgets both times"),
        "B9": Row("every message delivered twice changes nothing", _ALONE),
        "B10": Row("a deadline that passes while throttled closes the item"),
    },
    "Dispositions and provenance": {
        "D1": Row("a stage that overrides one policy field keeps the pipeline's other ones"),
        "D2": Row("a rejected item under warn_continue closes, and its value goes nowhere"),
        "D3": Row("a quarantined item is listed for review, and the run goes on", _ALONE),
        "D4": Row("fail_run ends admission, cancels the rest and keeps finished values"),
        "D5": Row("incomplete at one stage stays incomplete at the end, without checkpoints"),
        "D6": Row("accepted items are reused by the next run, others produced again", _ALONE),
        "D7": Row("a change that the fingerprint covers stops reuse from its stage on", _ALONE),
        "D8": Row("a failed run is resumed: unfinished items alone, with fresh budgets", _ALONE),
        "D9": Row("a validator cannot return a disposition"),
        "D10": Row("a key that comes twice in one run is one item"),
        "D11": Row("each reason under each disposition ends item and run as documented"),
    },
    "Module-requested retries": {
        "M1": Row("guidance with its response corrects the next request"),
        "M2": Row("a retry request without guidance makes a fresh attempt"),
        "M3": Row("guidance without a response is a contract failure"),
        "M4": Row("guidance that is blank, or from a producer without the protocol, is a contract failure"),
        "M5": Row("when attempts are exhausted the fallback is judged, accepted, marked, not checkpointed"),
        "M6": Row("a fallback that a validator rejects closes as semantic_rejection"),
        "M7": Row("module retries and rejections share the outer budget"),
        "M8": Row("a kept fallback survives later structural and operational failures"),
        "M9": Row("of several fallbacks the one of the highest rank is judged"),
    },
    "Registry": {
        "R1": Row("each structural fault is named, nothing half-applied, guidance uses local ids", _ALONE),
        "R2": Row("the safe group is applied, the unsafe one apart, one correction about it", _ALONE),
        "R3": Row("A~B, B~C, A and C incompatible: never one cluster, in one job or across", _ALONE),
        "R4": Row("a block proposed and applied twice, or again after a crash: one receipt", _ALONE),
        "R5": Row("merges at once give the partition of one after the other, no receipt lost", _ALONE),
        "R6": Row("an unmerge restores, stays, and is refused while a later merge stands on it", _ALONE),
        "R7": Row("an unchanged registry costs no model calls and no writes", _ALONE),
        "R8": Row("composition, width, case and Turkish I: exact duplicates meet without the model", _ALONE),
        "R9": Row("20,000 entries that share a word: no giant block, caps reported", _ALONE),
        "R10": Row("a cluster of 64 in prompts of 24 is assembled in any order of insertion", _ALONE),
        "R11": Row("instructions in a record have no effect on the rules", _ALONE),
        "R12": Row("of the safe partials the one with most records merged survives", _ALONE),
        "R13": Row("a reply that stays malformed merges nothing, says so and fails nothing", _ALONE),
        "R14": Row("an entry changed meanwhile: its group is not applied, and planned again", _ALONE),
    },
}

ROWS: Final[dict[str, Row]] = {number: row for table in TABLES.values() for number, row in table.items()}
