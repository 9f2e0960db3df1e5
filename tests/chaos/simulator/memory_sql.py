"""A database of one process: it runs the product's own SQL statements on rows in memory.

Guards are read out of the statements' own WHERE clauses, so a guard that is taken out of the product is gone here too.
Each statement is made into Python once. Only the forms that the ledger uses are understood; any other raises, and so a
new form cannot pass unseen. A writing transaction is whole: nobody else runs inside it, as on SQLite. A row is never
changed, only replaced, so whoever has read one keeps what was read.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy.sql import dml, elements, operators, selectable

from remand_tasks.state import ledger, submissions
from remand_tasks.state.tables import metadata, runs

Row = dict[str, Any]
Tables = dict[str, dict[tuple[Any, ...], Row]]

_TEXTS = {
    "state IN ('waiting','in_flight')": "row['state'] in ('waiting', 'in_flight')",
    "state = 'pending'": "row['state'] == 'pending'",
    "alone = 1": "row['alone'] == 1",
}
_OPERATORS: dict[Any, str] = {
    operators.eq: "==",
    operators.le: "<=",
    operators.in_op: "in",
    operators.not_in_op: "not in",
    operators.is_: "is",
    operators.add: "+",
}


def python_of(expression: Any, constants: list[Any]) -> str:
    """A where-clause or value of the product's as Python, of a `row`, the parameters `given` and `constants`."""
    if expression is None:
        return "True"
    if isinstance(expression, elements.TextClause):
        return _TEXTS[expression.text]
    if isinstance(expression, elements.BooleanClauseList):
        assert expression.operator is operators.and_
        return " and ".join(python_of(part, constants) for part in expression.clauses) or "True"
    if isinstance(expression, elements.Grouping):
        return python_of(expression.element, constants)
    if isinstance(expression, elements.BinaryExpression):
        left, right = python_of(expression.left, constants), python_of(expression.right, constants)
        return f"({left} {_OPERATORS[expression.operator]} {right})"
    if isinstance(expression, elements.BindParameter):
        assert expression.callable is None
        if expression.required:
            return f"given[{expression.key!r}]"
        constants.append(expression.value)
        return f"given.get({expression.key!r}, constants[{len(constants) - 1}])"
    if isinstance(expression, elements.Null):
        return "None"
    if isinstance(expression, elements.ClauseList | elements.ExpressionClauseList):
        return "(" + "".join(python_of(part, constants) + ", " for part in expression.clauses) + ")"
    return f"row[{expression.name!r}]"


class Mappings:
    """Rows by name."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def first(self) -> Any:
        """The first row."""
        return self._rows[0] if self._rows else None

    def one(self) -> Any:
        """The only row."""
        (row,) = self._rows
        return row

    def all(self) -> list[Any]:
        """All rows."""
        return self._rows


class Result(Mappings):
    """What a statement gave: rows by attribute."""

    def __init__(self, rows: list[Any], count: int = 0) -> None:
        self._rows = rows
        self.rowcount = count

    def mappings(self) -> Mappings:
        """The same rows by name."""
        return Mappings(self._rows)

    def first(self) -> Any:
        """The first row."""
        return _Named(self._rows[0]) if self._rows else None

    def one(self) -> Any:
        """The only row."""
        return _Named(super().one())

    def scalars(self) -> list[Any]:
        """The first value of each row."""
        return [next(iter(row.values())) for row in self._rows]

    def scalar_one(self) -> Any:
        """The only value."""
        (value,) = super().one().values()
        return value

    def scalar_one_or_none(self) -> Any:
        """The only value, if there is one."""
        return self.scalar_one() if self._rows else None


class _Named(dict[str, Any]):
    __getattr__ = dict.__getitem__


class MemoryDatabase:
    """Tables as rows by key. `before` is called ahead of every transaction, so that others may run."""

    sqlite = True
    unguarded: frozenset[str] = frozenset()
    """Bind parameters whose guards a rule that is taken out removes."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self._before = before
        self.tables: Tables = {name: {} for name in metadata.tables}
        self.watch: Callable[[Row, Row], None] = lambda before, after: None
        self.watch_value: Callable[[Row, int, Any], None] = lambda row, stage, value: None
        self._reading, self._writing = _Reading(self), _Writing(self)
        self._written: list[tuple[str, tuple[Any, ...], Row | None, Row | None]] = []

    def read(self) -> _Reading:
        """A connection for reading."""
        return self._reading

    def write(self) -> _Writing:
        """One transaction, undone if it raises or is rolled back."""
        return self._writing

    def execute(self, statement: Any, given: Any = None) -> Result:
        """Run one of the product's statements."""
        return _plan(statement, self.unguarded)(self, given or {})

    def put(self, table: str, key: tuple[Any, ...], row: Row | None) -> None:
        """Write a row in the place of the one that is there, if any; `None` deletes it."""
        rows = self.tables[table]
        self._written.append((table, key, rows.get(key), row))
        if row is None:
            del rows[key]
        else:
            rows[key] = row

    def rollback(self) -> None:
        """Undo what this transaction wrote."""
        for table, key, before, _ in reversed(self._written):
            if before is None:
                del self.tables[table][key]
            else:
                self.tables[table][key] = before
        self._written = []

    def commit(self) -> None:
        """Tell the watchers what this transaction wrote."""
        written, self._written = self._written, []
        for table, _, before, after in written:
            if table == "items" and before is not None and after is not None:
                self.watch(before, after)
        for table, key, _, after in written:
            if table == "payloads" and after is not None and after["name"].startswith("value."):
                stage = int(after["name"].removeprefix("value."))
                self.watch_value(self.tables["items"][key[:2]], stage, json.loads(after["body"]))

    def insert_or_ignore(self, table: Any) -> Any:
        """Marks an insert that leaves a row alone that is there."""
        return ("ignore", table)


class _Reading:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def __enter__(self) -> MemoryDatabase:
        self._database._before("sql")
        return self._database

    def __exit__(self, *_: object) -> None: ...


class _Writing(_Reading):
    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._database.rollback()
        elif self._database._written:
            self._database.commit()


# ------------------------------------------------------------------------------------------------------ statements

Plan = Callable[[MemoryDatabase, Any], Result]


@functools.lru_cache(maxsize=128)
def _plan(statement: Any, unguarded: frozenset[str]) -> Plan:
    """How one of the product's statements is run."""
    if statement in _WRITTEN_OUT:
        return _WRITTEN_OUT[statement]
    if isinstance(statement, tuple):
        return _insert(statement[1], ignore=True)
    if isinstance(statement, dml.Insert):
        return _insert(statement.table, ignore=False)
    if isinstance(statement, dml.Update):
        return _update(statement, unguarded)
    if isinstance(statement, dml.Delete):
        return _delete(statement)
    assert isinstance(statement, selectable.Select)
    return _select(statement)


def _evaluated(python: str, constants: list[Any]) -> Any:
    return eval(python, {"constants": constants, "Result": Result})


def _insert(table: Any, *, ignore: bool) -> Plan:
    name = table.name
    empty = {column.name: _default(column) for column in table.columns}
    key_of = _evaluated("lambda row: (" + "".join(f"row[{c.name!r}], " for c in table.primary_key) + ")", [])

    def run(database: MemoryDatabase, given: Any) -> Result:
        count = 0
        for values in given if isinstance(given, list) else [given]:
            row = {**empty, **values}
            assert len(row) == len(empty), f"{name} has no such column"
            key = key_of(row)
            if key not in database.tables[name]:
                database.put(name, key, row)
                count += 1
            elif not ignore:
                raise AssertionError(f"a second row {key} in {name}")
        return Result([], count)

    return run


def _default(column: Any) -> Any:
    return int(column.server_default.arg) if column.server_default is not None else None


def _update(statement: Any, unguarded: frozenset[str]) -> Plan:
    name = statement.table.name
    constants: list[Any] = []
    where = python_of(_without(statement.whereclause, unguarded), constants)
    values = "".join(
        f"{getattr(column, 'name', column)!r}: {python_of(value, constants)}, "
        for column, value in statement._values.items()
    )
    updated = _evaluated(f"lambda row, given: {{**row, {values}}} if {where} else None", constants)

    def run(database: MemoryDatabase, given: Any) -> Result:
        rows, count = database.tables[name], 0
        one = name == "items" and "at_run" in given and "at_seq" in given
        for key in [(given["at_run"], given["at_seq"])] if one else list(rows):
            row = updated(rows[key], given) if key in rows else None
            if row is not None:
                database.put(name, key, row)
                count += 1
        return Result([], count)

    return run


def _without(clause: Any, names: frozenset[str]) -> Any:
    """`clause` without the comparisons with these bind parameters."""
    if not names or not isinstance(clause, elements.BooleanClauseList):
        return clause
    kept = [
        part
        for part in clause.clauses
        if not (isinstance(getattr(part, "right", None), elements.BindParameter) and part.right.key in names)
    ]
    return elements.BooleanClauseList._construct_raw(operators.and_, kept)


def _delete(statement: Any) -> Plan:
    name = statement.table.name
    constants: list[Any] = []
    where = python_of(statement.whereclause, constants)
    found = _evaluated(f"lambda rows, given: [key for key, row in rows.items() if {where}]", constants)

    def run(database: MemoryDatabase, given: Any) -> Result:
        gone = found(database.tables[name], given)
        for key in gone:
            database.put(name, key, None)
        return Result([], len(gone))

    return run


def _select(statement: Any) -> Plan:
    (table,) = {source.name for source in statement.get_final_froms()}
    constants: list[Any] = []
    where = python_of(statement.whereclause, constants)
    rows = f"[row for row in database.tables[{table!r}].values() if {where}]"
    for clause in reversed(statement._order_by_clauses):
        descending = isinstance(clause, elements.UnaryExpression)
        column = clause.element.name if descending else clause.name
        rows = f"sorted({rows}, key=lambda row: row[{column!r}], reverse={descending})"
    if statement._limit_clause is not None:
        rows = f"{rows}[:{python_of(statement._limit_clause, constants)}]"
    columns = [column.name for column in statement.selected_columns]
    if len(columns) == 1:
        rows = f"[{{{columns[0]!r}: row.get({columns[0]!r}, 1)}} for row in {rows}]"
    plan: Plan = _evaluated(f"lambda database, given: Result({rows})", constants)
    return plan


# Statements that join or aggregate are written out here, but for the open rows: what is open, the statement says.

_LABELS = [f"run__{column.name}" for column in runs.columns]
_OPEN: Plan = _evaluated(
    f"lambda database, given: "
    f"[row for row in database.tables['items'].values() if {python_of(ledger._OPEN_COUNT.whereclause, [])}]",
    [],
)


def _execution(database: MemoryDatabase, given: Any) -> Result:
    run_id, seq = given["run_id"], given["seq"]
    row = database.tables["items"].get((run_id, seq))
    if row is None:
        return Result([])
    run = database.tables["runs"][(run_id,)]
    bodies = database.tables["payloads"]
    body = bodies.get((run_id, seq, "input"), {}).get("body")
    previous = bodies.get((run_id, seq, given.get("previous_name", "")), {}).get("body")
    labelled = dict(zip(_LABELS, run.values(), strict=True))
    return Result([{**row, **labelled, "input_body": body, "previous_body": previous}])


def _open_count(database: MemoryDatabase, given: Any) -> Result:
    return Result([{"count": len(_OPEN(database, given))}])


def _ends(database: MemoryDatabase, given: Any) -> Result:
    rows = database.tables["items"].values()
    return Result([(row["status"], row["used_fallback"], 1) for row in rows])


def _last_seq(database: MemoryDatabase, given: Any) -> Result:
    rows = database.tables["items"].values()
    return Result([{"max": max((row["seq"] for row in rows), default=None)}])


_WRITTEN_OUT: dict[Any, Plan] = {
    ledger._EXECUTION: _execution,
    ledger._EXECUTION_WITH_INPUT: _execution,
    ledger._OPEN_COUNT: _open_count,
    ledger._ENDS: _ends,
    submissions._LAST_SEQ: _last_seq,
}

__all__ = ["MemoryDatabase"]
