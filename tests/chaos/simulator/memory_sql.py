"""A database of one process: it runs the product's own SQL statements on rows in memory.

Guards are read out of the statements' own WHERE clauses, so a guard that is taken out of the product is gone here too.
Only the forms that the ledger uses are understood; any other raises, and so a new form cannot pass unseen.
A writing transaction is whole: nobody else runs inside it, as on SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy.sql import dml, elements, operators, selectable

from remand_tasks.state import ledger, submissions
from remand_tasks.state.tables import items, metadata, runs

Predicate = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]

_TEXTS: dict[str, Predicate] = {
    "state IN ('waiting','in_flight')": lambda row, _: row["state"] in ("waiting", "in_flight"),
    "state = 'pending'": lambda row, _: row["state"] == "pending",
    "alone = 1": lambda row, _: row["alone"] == 1,
}


def compile_expression(expression: Any) -> Predicate:
    """A where-clause or value of the product's, as a function of a row and the parameters."""
    if expression is None:
        return lambda row, given: True
    if isinstance(expression, elements.TextClause):
        return _TEXTS[expression.text]
    if isinstance(expression, elements.BooleanClauseList):
        parts = [compile_expression(part) for part in expression.clauses]
        assert expression.operator is operators.and_
        return lambda row, given: all(part(row, given) for part in parts)
    if isinstance(expression, elements.Grouping):
        return compile_expression(expression.element)
    if isinstance(expression, elements.BinaryExpression):
        left, right = compile_expression(expression.left), compile_expression(expression.right)
        apply = _OPERATORS[expression.operator]
        return lambda row, given: apply(left(row, given), right(row, given))
    if isinstance(expression, elements.BindParameter):
        name, value, callable_ = expression.key, expression.value, expression.callable
        assert callable_ is None
        return lambda row, given: given.get(name, value)
    if isinstance(expression, elements.Null):
        return lambda row, given: None
    if isinstance(expression, elements.ClauseList | elements.ExpressionClauseList):
        parts = [compile_expression(part) for part in expression.clauses]
        return lambda row, given: [part(row, given) for part in parts]
    name = expression.name
    return lambda row, given: row[name]


_OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    operators.eq: lambda a, b: a == b,
    operators.le: lambda a, b: a <= b,
    operators.in_op: lambda a, b: a in b,
    operators.not_in_op: lambda a, b: a not in b,
    operators.is_: lambda a, b: a is b,
    operators.add: lambda a, b: a + b,
}


_COMPILED: dict[int, tuple[Any, Any]] = {}
_ASSIGNMENTS: dict[int, tuple[Any, dict[str, Predicate]]] = {}
_SHAPES: dict[int, tuple[Any, Any]] = {}
"""What was made of each statement. They belong to the product's modules and live as long as these do."""


class Result:
    """What a statement gave."""

    def __init__(self, rows: list[dict[str, Any]], count: int = 0) -> None:
        self._rows = rows
        self.rowcount = count

    def mappings(self) -> Result:
        """Rows by name, as they are here anyway."""
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def first(self) -> Any:
        """The first row."""
        return _Named(self._rows[0]) if self._rows else None

    def one(self) -> Any:
        """The only row."""
        (row,) = self._rows
        return _Named(row)

    def all(self) -> list[Any]:
        """All rows."""
        return self._rows

    def scalars(self) -> list[Any]:
        """The first value of each row."""
        return [next(iter(row.values())) for row in self._rows]

    def scalar_one(self) -> Any:
        """The only value."""
        (row,) = self._rows
        (value,) = row.values()
        return value

    def scalar_one_or_none(self) -> Any:
        """The only value, if there is one."""
        return self.scalar_one() if self._rows else None


class _Named(dict[str, Any]):
    __getattr__ = dict.__getitem__


class _Shape(NamedTuple):
    table: str
    where: Predicate
    order: list[tuple[str, bool]]
    limit: Predicate | None
    only: str | None


class MemoryDatabase:
    """Tables as lists of rows. `before` is called ahead of every transaction, so that others may run."""

    sqlite = True
    unguarded: frozenset[str] | set[str] = frozenset()
    """Bind parameters whose guards a rule that is taken out removes."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self._before = before
        self.tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {name: {} for name in metadata.tables}
        self._compiled: dict[int, tuple[Any, Any]] = _COMPILED
        self._shapes: dict[int, tuple[Any, _Shape]] = _SHAPES
        self._assignments: dict[int, tuple[Any, dict[str, Predicate]]] = _ASSIGNMENTS
        self.watch: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], None] = lambda before, after: None
        self.watch_value: Callable[[Mapping[str, Any], int, Any], None] = lambda row, stage, value: None
        self._changed: list[tuple[dict[str, Any] | None, dict[str, Any]]] = []
        self._stored: list[dict[str, Any]] = []

    @contextmanager
    def read(self) -> Iterator[MemoryDatabase]:
        """A connection for reading."""
        self._before("sql")
        yield self

    @contextmanager
    def write(self) -> Iterator[MemoryDatabase]:
        """One transaction, undone if it raises or is rolled back."""
        self._before("sql")
        self._undo: list[Callable[[], None]] = []
        self._changed, self._stored = [], []
        try:
            yield self
        except BaseException:
            self.rollback()
            raise
        for before, after in self._changed:
            self.watch(before, after)
        for stored in self._stored:
            row = self.tables["items"][(stored["run_id"], stored["seq"])]
            self.watch_value(row, int(stored["name"].split(".")[1]), json.loads(stored["body"]))

    def rollback(self) -> None:
        """Undo what this transaction wrote."""
        for undo in reversed(self._undo):
            undo()
        self._undo, self._changed, self._stored = [], [], []

    def insert_or_ignore(self, table: Any) -> Any:
        """Marks an insert that leaves a row alone that is there."""
        return ("ignore", table)

    # -------------------------------------------------------------------------------------------- statements

    def execute(self, statement: Any, given: Any = None) -> Result:
        """Run one of the product's statements."""
        given = given or {}
        if isinstance(statement, tuple):
            return self._insert(statement[1], given, ignore=True)
        if isinstance(statement, dml.Insert):
            rows = given if isinstance(given, list) else [given]
            for row in rows:
                self._insert(statement.table, row, ignore=False)
            return Result([], len(rows))
        if isinstance(statement, dml.Update):
            return self._update(statement, given)
        if isinstance(statement, dml.Delete):
            return self._delete(statement, given)
        assert isinstance(statement, selectable.Select)
        return self._select(statement, given)

    def _where(self, statement: Any) -> Predicate:
        if self.unguarded and isinstance(statement, dml.Update):
            return compile_expression(_without(statement.whereclause, self.unguarded))
        found = self._compiled.get(id(statement))
        if found is None or found[0] is not statement:
            clause = statement.whereclause
            found = self._compiled[id(statement)] = (statement, compile_expression(clause))
        return found[1]

    def _values(self, statement: Any) -> dict[str, Predicate]:
        found = self._assignments.get(id(statement))
        if found is None or found[0] is not statement:
            values = {
                getattr(column, "name", column): compile_expression(value)
                for column, value in statement._values.items()
            }
            found = self._assignments[id(statement)] = (statement, values)
        return found[1]

    def _insert(self, table: Any, given: Mapping[str, Any], *, ignore: bool) -> Result:
        row = {column.name: given.get(column.name, _default(column)) for column in table.columns}
        key = tuple(row[column.name] for column in table.primary_key)
        rows = self.tables[table.name]
        if key in rows:
            if not ignore:
                raise AssertionError(f"a second row {key} in {table.name}")
            return Result([], 0)
        rows[key] = row
        if table.name == "payloads" and row["name"].startswith("value."):
            self._stored.append(row)
        self._undo.append(lambda: rows.pop(key))
        return Result([], 1)

    def _update(self, statement: Any, given: Mapping[str, Any]) -> Result:
        where = self._where(statement)
        values = self._values(statement)
        count = 0
        for row in self._candidates(statement.table, given):
            if where(row, given):
                before = dict(row)
                row.update({name: value(before, given) for name, value in values.items()})
                self._undo.append(lambda row=row, before=before: row.update(before))  # type: ignore[misc]
                if statement.table is items:
                    self._changed.append((before, dict(row)))
                count += 1
        return Result([], count)

    def _delete(self, statement: Any, given: Mapping[str, Any]) -> Result:
        where, rows = self._where(statement), self.tables[statement.table.name]
        gone = [key for key, row in rows.items() if where(row, given)]
        for key in gone:
            row = rows.pop(key)
            self._undo.append(lambda key=key, row=row: rows.__setitem__(key, row))  # type: ignore[misc]
        return Result([], len(gone))

    def _candidates(self, table: Any, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = self.tables[table.name]
        if "at_run" in given and "at_seq" in given and table is items:
            found = rows.get((given["at_run"], given["at_seq"]))
            return [] if found is None else [found]
        return list(rows.values())

    def _select(self, statement: Any, given: Mapping[str, Any]) -> Result:
        if statement is ledger._EXECUTION or statement is ledger._EXECUTION_WITH_INPUT:
            return self._execution(given)
        if statement is ledger._OPEN_COUNT:
            where = self._where(statement)
            return Result([{"count": sum(bool(where(row, given)) for row in self.tables["items"].values())}])
        if statement is ledger._ENDS:
            return Result(
                [(row["status"], row["used_fallback"], 1) for row in self.tables["items"].values()]  # type: ignore[misc]
            )
        if statement is submissions._LAST_SEQ:
            return Result([{"max": max((row["seq"] for row in self.tables["items"].values()), default=None)}])
        shape = self._shape(statement)
        found = [row for row in self.tables[shape.table].values() if shape.where(row, given)]
        for column, descending in shape.order:
            found.sort(key=lambda row: row[column], reverse=descending)
        if shape.limit is not None:
            found = found[: shape.limit({}, given)]
        if shape.only is not None:
            return Result([{shape.only: row.get(shape.only, 1)} for row in found])
        return Result([dict(row) for row in found])

    def _shape(self, statement: Any) -> _Shape:
        kept = self._shapes.get(id(statement))
        if kept is not None and kept[0] is statement:
            return kept[1]
        (table,) = {source.name for source in statement.get_final_froms()}
        order = []
        for clause in reversed(statement._order_by_clauses):
            descending = isinstance(clause, elements.UnaryExpression)
            order.append((clause.element.name if descending else clause.name, descending))
        columns = [column.name for column in statement.selected_columns]
        limit = statement._limit_clause
        shape = _Shape(
            table,
            self._where(statement),
            order,
            None if limit is None else compile_expression(limit),
            columns[0] if len(columns) == 1 else None,
        )
        self._shapes[id(statement)] = (statement, shape)
        return shape

    def _execution(self, given: Mapping[str, Any]) -> Result:
        row = self.tables["items"].get((given["run_id"], given["seq"]))
        if row is None:
            return Result([])
        run = self.tables["runs"][(row["run_id"],)]
        bodies = self.tables["payloads"]
        body = bodies.get((row["run_id"], row["seq"], "input"), {}).get("body")
        previous = bodies.get((row["run_id"], row["seq"], given.get("previous_name", "")), {}).get("body")
        joined = {**{f"run__{name}": value for name, value in run.items()}, **row}
        return Result([{**joined, "input_body": body, "previous_body": previous}])


def _default(column: Any) -> Any:
    return int(column.server_default.arg) if column.server_default is not None else None


def _without(clause: Any, names: Any) -> Any:
    """`clause` without the comparisons with these bind parameters."""
    if not isinstance(clause, elements.BooleanClauseList):
        return clause
    kept = [
        part
        for part in clause.clauses
        if not (isinstance(getattr(part, "right", None), elements.BindParameter) and part.right.key in names)
    ]
    return elements.BooleanClauseList._construct_raw(operators.and_, kept)


__all__ = ["MemoryDatabase", "compile_expression", "items", "runs"]
