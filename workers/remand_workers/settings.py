"""Configuration: read once from the environment (`REMAND_*`) and a `.env` file, then passed inward.

No other module reads the environment for Remand's own settings (the model adapters in `remand.llm` read
`REMAND_MODEL*` by themselves, because pipelines also run without this package). This module connects to nothing and
never quotes a value it was given: an error names the variable and what is wanted, a listing masks every secret.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import parse_qs, urlsplit

from dotenv import dotenv_values
from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from remand.errors import RemandError
from remand_tasks.state.vault import KeyRing

PREFIX = "REMAND_"
ENV_FILE = ".env"
HIDDEN = "********"


class SettingsError(RemandError):
    """A setting is missing or has a value that cannot be used. Raised when settings are read, before any work.

    `problems` are pairs of an environment variable's name and what to mend. Values are never quoted.
    """

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(f"{variable}: {problem}" for variable, problem in self.problems)


def _seconds(value: object) -> object:
    """Turn a plain number, or a string that is one, into a span of time."""
    if isinstance(value, timedelta):
        return value
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    # The upper limit keeps a typing slip from becoming an overflow deep inside a queue or a lease.
    if isinstance(value, bool) or not 0 <= number <= timedelta(days=3650).total_seconds():
        raise ValueError("must be a number of seconds, such as 30 or 0.5")
    return timedelta(seconds=number)


# A comma may also be part of a password.
_BETWEEN_URLS = re.compile(r"[,\s]+(?=(?:redis|rediss|unix|redis\+socket|amqp|amqps)://)")

Seconds = Annotated[
    timedelta,
    BeforeValidator(_seconds),
    PlainSerializer(lambda span: f"{span.total_seconds():g}", return_type=str),
]
"""A span of time, written in the environment as a plain number of seconds."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of `remand config`: the variable, its value (secrets hidden), where it came from, what it is for."""

    variable: str
    value: str
    source: str
    description: str


class Settings(BaseSettings):
    """Everything that can be set. `Settings()` reads it; keyword arguments win over the environment and `.env`.

    Raises `SettingsError`, with every problem found, if a value cannot be used.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    # Where things are.
    broker_url: str | None = Field(
        None,
        repr=False,
        description=(
            "Celery broker: redis://, rediss://, redis+socket:// or amqp://. "
            "Unset: services are embedded in REMAND_HOME."
        ),
    )
    vault_url: str | None = Field(
        None,
        repr=False,
        description=(
            "Redis or Valkey for encrypted texts and attempt records. It should persist nothing. "
            "Unset: the broker's, if that is Redis."
        ),
    )
    vault_keys: SecretStr | None = Field(
        None,
        description=(
            "Keys of the vault, `id:key` and comma-separated, newest first: the first encrypts, all decrypt. "
            "Embedded services make their own."
        ),
    )
    ledger_url: str | None = Field(
        None,
        repr=False,
        description=(
            "SQL database that is the truth about runs: postgresql+psycopg:// or sqlite:///. "
            "Embedded services use SQLite in REMAND_HOME."
        ),
    )
    home: Path = Field(
        Path(".remand"), description="Folder of embedded services: their ledger, vault key and log."
    )

    # The model, for producers and judges that name none themselves.
    model: str | None = Field(None, description="Model that producers and judges use unless they name one.")
    model_base_url: str | None = Field(
        None,
        repr=False,
        description="OpenAI-compatible server that serves it, such as http://127.0.0.1:8080/v1.",
    )
    model_api_key: SecretStr | None = Field(None, description="That server's key.")

    # How much at once.
    window: int = Field(256, ge=1, description="Items of one run in flight or waiting at once.")
    concurrency: int = Field(
        16, ge=1, description="Steps at once in one worker process (threads or, with prefork, processes)."
    )
    workers: int = Field(2, ge=1, description="Worker processes that an embedded run starts.")
    pool: Literal["threads", "prefork"] = Field(
        "threads",
        description="Celery pool: threads for work that waits, prefork for validators that compute.",
    )
    hung_calls: int = Field(
        8,
        ge=1,
        description="Calls past their deadline that one process tolerates before it gives up its work.",
    )

    # Claims, leases and recovery.
    claim_lease: Seconds = Field(
        timedelta(seconds=30),
        gt=timedelta(0),
        description="Time after which a step that no longer renews its claim is taken for dead.",
    )
    claim_renewal: Seconds = Field(
        timedelta(seconds=10),
        gt=timedelta(0),
        description="How often a step renews its claim. At most a third of REMAND_CLAIM_LEASE.",
    )
    claim_grace: Seconds = Field(
        timedelta(seconds=15),
        description="Time beyond a call's own deadlines after which its claim is renewed no more.",
    )
    dispatch_lease: Seconds = Field(
        timedelta(seconds=10),
        gt=timedelta(0),
        description="Time after which a message that nobody claimed is sent again. Doubles each time.",
    )
    dispatch_lease_max: Seconds = Field(
        timedelta(minutes=5),
        gt=timedelta(0),
        description="Where that doubling ends. At least REMAND_DISPATCH_LEASE.",
    )
    planning_lease: Seconds = Field(
        timedelta(minutes=2),
        gt=timedelta(0),
        description="Time after which a worker that plans a registry's blocks, and says nothing, is taken for dead.",
    )
    pulse_interval: Seconds = Field(
        timedelta(seconds=1),
        gt=timedelta(0),
        description="How often a coordinating worker looks for what is due or lost.",
    )
    visibility_timeout: Seconds = Field(
        timedelta(hours=1),
        gt=timedelta(0),
        description=(
            "Time after which a Redis broker hands out an unacknowledged message again. "
            "Must exceed the longest step."
        ),
    )
    max_recoveries: int = Field(
        3, ge=0, description="Lost workers or lost facts that one item survives before it closes as failed."
    )
    max_reopens: int = Field(
        8, ge=0, description="Times that one item's missing attempt record is opened again before it closes."
    )

    retention: Seconds | None = Field(
        None,
        gt=timedelta(0),
        description=(
            "Time after which items of ended runs lose their payloads and receipts. Unset: kept until `remand purge`."
        ),
    )

    # Messages of other systems.
    intake_url: str | None = Field(
        None,
        repr=False,
        description=(
            "Where `remand intake` reads: redis:// a stream, amqp:// a queue; both, with a comma between them. "
            "Unset: the broker."
        ),
    )
    intake_stream: str = Field("remand.intake", min_length=1, description="Its Redis Stream.")
    intake_group: str = Field("remand", min_length=1, description="Its consumer group on that stream.")
    intake_queue: str = Field("remand.intake", min_length=1, description="Its AMQP queue.")
    intake_max_bytes: int = Field(
        1024 * 1024, ge=1, le=64 * 1024 * 1024, description="Bytes of the largest message that is taken."
    )
    intake_max_entries: int = Field(1_000, ge=1, description="Entries in one message, at most.")
    intake_lease: Seconds = Field(
        timedelta(minutes=1),
        gt=timedelta(0),
        description="Time after which a message that was delivered and not finished is taken again.",
    )
    intake_retention: Seconds = Field(
        timedelta(days=7),
        gt=timedelta(0),
        description="Time for which the vault keeps a message that could not be taken, encrypted, to be retried.",
    )

    # Watching it.
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        "INFO", description="Least severe log records that are written."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: for people on a terminal, JSON lines elsewhere."
    )
    flower_address: str = Field("127.0.0.1", description="Address that Flower listens on.")
    flower_port: int = Field(
        5555, ge=0, le=65535, description="Port that Flower listens on; 0 takes a free one."
    )
    flower_auth: SecretStr | None = Field(
        None,
        description="Flower's `user:password`. Required when Flower listens on more than this machine.",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for Prometheus metrics of a worker; 0 takes a free one. Unset: none.",
    )

    _given: frozenset[str] = PrivateAttr(frozenset())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = tuple(
                _problem(detail) for detail in error.errors(include_input=False, include_url=False)
            )
        except UnicodeDecodeError:
            problems = ((ENV_FILE, "cannot be read: it must be UTF-8 text"),)
        except OSError as error:
            problems = ((ENV_FILE, f"cannot be read ({type(error).__name__})"),)
        else:
            self._given = frozenset(values)
            return
        raise SettingsError(*problems)

    @model_validator(mode="before")
    @classmethod
    def _spell(cls, values: Any) -> Any:
        """Accept choices in any case."""
        if isinstance(values, dict):
            for name, change in (("log_level", str.upper), ("log_format", str.lower), ("pool", str.lower)):
                if isinstance(values.get(name), str):
                    values = {**values, name: change(values[name].strip())}
        return values

    @model_validator(mode="after")
    def _agree(self) -> Self:
        problems = []
        if self.claim_renewal * 3 > self.claim_lease:
            problems.append(
                (
                    "claim_renewal",
                    "must be at most a third of REMAND_CLAIM_LEASE, or a slow moment loses live work",
                )
            )
        if self.dispatch_lease_max < self.dispatch_lease:
            problems.append(("dispatch_lease_max", "must be at least REMAND_DISPATCH_LEASE"))
        if self.flower_auth is not None and not re.fullmatch(
            r"[^:]+:.+", self.flower_auth.get_secret_value()
        ):
            problems.append(("flower_auth", "must be `user:password`"))
        if problems:
            raise SettingsError(*((variable(name), problem) for name, problem in problems))
        if self.vault_url is None and self.broker_url is not None:
            # Plain assignment is refused on frozen settings; this is still construction.
            object.__setattr__(self, "vault_url", _as_redis(self.broker_url))
        return self

    @property
    def embedded(self) -> bool:
        """Whether services are to be started here, in `home`, because no broker is named."""
        return self.broker_url is None

    def intake_urls(self) -> tuple[str, ...]:
        """Where messages of other systems come from, Redis as redis-py names it. Raises `SettingsError`."""
        given, name = (
            (self.broker_url or "", "broker_url")
            if self.intake_url is None
            else (self.intake_url, "intake_url")
        )
        found = []
        for url in _BETWEEN_URLS.split(given.strip()):
            if not url.startswith(("amqp://", "amqps://", "unix://")):
                try:
                    url = _as_redis(url) or ""
                except ValueError:
                    url = ""
            if not url:
                raise SettingsError(
                    (variable(name), "must name a redis:// or amqp:// server to take messages from")
                )
            found.append(url)
        return tuple(found)

    def require_services(self, *, keys: bool = True) -> None:
        """Check that broker, vault, its keys and ledger are all named, and that the keys are keys.

        With `keys` false, for one who submits and watches: it reads no texts and should hold no keys. Raises
        `SettingsError`, with every one that is wrong.
        """
        problems = []
        if self.broker_url is None:
            problems.append(("broker_url", "is not set: name a broker, or use embedded services"))
        if self.vault_url is None:
            problems.append(("vault_url", "must be set: the broker is no Redis that could hold the vault"))
        if keys and self.vault_keys is None:
            problems.append(("vault_keys", "must be set, to the same keys on every worker"))
        elif keys and self.vault_keys is not None:
            try:
                KeyRing.parse(self.vault_keys.get_secret_value())
            except RemandError as error:
                problems.append(("vault_keys", str(error)))
        if self.ledger_url is None:
            problems.append(("ledger_url", "must be set, to the same database on every worker"))
        if problems:
            raise SettingsError(*((variable(name), problem) for name, problem in problems))

    def replace(self, **values: Any) -> Settings:
        """A copy with some values replaced. Nothing is read or checked again: for values that the program made."""
        copy = self.model_copy(update=values)
        copy._given = self._given | values.keys()
        return copy

    def environment(self) -> dict[str, str]:
        """The settings that differ from their defaults, as variables for a process started from here.

        It holds secrets: pass it to a child's environment, never to a log or a command line.
        """
        found = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value is not None and value != field.default:
                found[variable(name)] = _plain(value)
        return found

    def shown(
        self, environment: Mapping[str, str] | None = None, env_file: Path | None = None
    ) -> list[Shown]:
        """Every setting for people: secrets and the passwords in URLs hidden, and where each value came from.

        The source is `default`, `environment`, `.env`, `REMAND_BROKER_URL` for a vault that follows the broker, or
        `set by the program`. The two arguments say where to look, by default where settings are read from.
        """
        given = os.environ if environment is None else environment
        named = {key.upper() for key, value in given.items() if value}
        path = Path(ENV_FILE) if env_file is None else env_file
        filed = (
            {key.upper() for key, value in dotenv_values(path).items() if value} if path.is_file() else set()
        )
        rows = []
        for name, field in type(self).model_fields.items():
            value, key = getattr(self, name), variable(name)
            if name in self._given:
                source = "set by the program"
            elif key in named:
                source = "environment"
            elif key in filed:
                source = ENV_FILE
            elif name == "vault_url" and value is not None and name not in self.model_fields_set:
                source = variable("broker_url")
            else:
                source = "default"
            rows.append(Shown(key, _masked(value), source, field.description or ""))
        return rows


def variable(name: str) -> str:
    """The environment variable of a field."""
    return f"{PREFIX}{name.upper()}"


def without_password(url: str) -> str:
    """The URL with any password in it hidden; more is hidden where it is unclear how far the password goes."""
    url = re.sub(r"://([^:/@?]*):.*@", rf"://\1:{HIDDEN}@", url)
    return re.sub(
        r"([?&][^=&]*(?:password|secret|key)[^=&]*=)[^&]*", rf"\1{HIDDEN}", url, flags=re.IGNORECASE
    )


def _plain(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}"
    return str(value)


def _masked(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return HIDDEN
    return without_password(_plain(value))


def _as_redis(broker: str) -> str | None:
    """The broker's Redis as redis-py names it, or `None` if the broker is something else."""
    parts = urlsplit(broker)
    if parts.scheme in {"redis", "rediss"} and ";" not in broker:
        return broker
    if parts.scheme == "redis+socket":
        database = parse_qs(parts.query).get("virtual_host", ["0"])[0].strip("/")
        return f"unix://{parts.path}?db={database or 0}"
    return None


_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def _problem(detail: Any) -> tuple[str, str]:
    """Say what pydantic found in plain words, from its error's kind and limits alone, never from the input."""
    kind, context = detail["type"], detail.get("ctx", {})
    name = variable(str(detail["loc"][0])) if detail["loc"] else PREFIX + "*"
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        limit = context[key]
        return name, f"must be {words} {_plain(limit)}{' seconds' if isinstance(limit, timedelta) else ''}"
    if kind == "literal_error":
        choices = ", ".join(
            str(each) for each in get_args(Settings.model_fields[str(detail["loc"][0])].annotation)
        )
        return name, f"must be one of {choices}"
    if kind.startswith("int_"):
        return name, "must be a whole number"
    if kind == "value_error":  # Raised by the functions above: constant text.
        return name, str(context["error"])
    if kind.startswith("path_"):
        return name, "must be the path of a folder"
    return name, "must be text" if kind.startswith("string_") else "cannot be used"
