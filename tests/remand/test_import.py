"""What `import remand` costs: no queue, no database, no HTTP client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

FORBIDDEN = (
    "celery", "kombu", "redis", "sqlalchemy", "alembic", "openai", "httpx", "httpx2", "structlog", "rich", "typer",
    "flower", "cryptography", "remand_tasks", "remand_workers",
)  # fmt: skip


def imported_by(statement: str) -> tuple[set[str], float]:
    """The top-level modules that a fresh process has after `statement`, and the seconds it took, as Python counts."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    modules = {name.partition(".")[0] for name in json.loads(done.stdout)}
    name = statement.split()[1]
    micros = [
        int(line.split("|")[1]) for line in done.stderr.splitlines() if line.split("|")[-1].strip() == name
    ]
    return modules, sum(micros) / 1e6


def test_importing_remand_loads_no_queue_no_database_and_no_client(
    record_property: Callable[[str, object], None],
) -> None:
    modules, seconds = imported_by("import remand")
    assert "pydantic" in modules
    assert modules.isdisjoint(FORBIDDEN)
    record_property("import_seconds", seconds)
    assert seconds > 0


def test_importing_the_adapters_loads_no_client_either() -> None:
    modules, _ = imported_by("import remand.llm")
    assert modules.isdisjoint(FORBIDDEN)


def test_importing_the_policy_needs_the_standard_library_only() -> None:
    modules, _ = imported_by("import remand_policy")
    foreign = {name for name in modules if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert foreign - {"remand_policy"} <= installed_hooks()


def installed_hooks() -> set[str]:
    """Modules that a bare Python has here, by site customization and editable installs."""
    modules, _ = imported_by("import sys")
    return modules


def test_every_public_name_exists_and_is_listed_once() -> None:
    import remand

    assert len(remand.__all__) == len(set(remand.__all__))
    assert all(hasattr(remand, name) for name in remand.__all__)
