"""Messages of other systems, from a real Redis Stream and a real AMQP queue: taken once, or dead with a reason.

Every test but those of one kind of server runs on both, with `remand intake` as a process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from kombu import Connection
from sqlalchemy import select

from remand_tasks.registry.letters import Letter, listed
from remand_tasks.registry.store import Registries
from remand_tasks.registry.tables import dead, entries, messages, records
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import upgrade
from remand_tasks.state.vault import KeyRing

for _folder in (Path(__file__).resolve().parent, Path(__file__).resolve().parents[1] / "chaos"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from chaos_kit.services import Missing, Rabbit, Valkey, free_port, listens, new_folder, until  # noqa: E402
from intake_kit import Command  # noqa: E402

pytestmark = [pytest.mark.workers, pytest.mark.timeout(180)]

MARKER = "Zqforeign4411x"
"""In every bad message, and nowhere that people look."""
NAME = "remand.intake"
WORKS = '''
import os
import signal

from pydantic import BaseModel

from remand import Groups, Produced, Registry, producer


class Work(BaseModel):
    title: str
    year: int | None = None


@producer(version="1", output=Groups)
def nothing(context, correction):
    return Produced(Groups(groups=[]))


def title(work):
    """The title."""
    if work.title.endswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if work.title.endswith("raise"):
        raise ValueError(work.title)
    return work.title


works = Registry("works", Work, version="1", key=title, text=title, proposer=nothing)
'''


@dataclass
class RedisOffice:
    """A stream on which another system leaves its messages."""

    valkey: Valkey
    kind = "redis"

    @property
    def url(self) -> str:
        return self.valkey.vault_url

    def send(self, *bodies: bytes) -> None:
        with self.valkey.client.pipeline(transaction=False) as together:
            for body in bodies:
                together.execute_command("XADD", NAME, "*", "json", body)
            together.execute()

    def waiting(self) -> int:
        return int(self.valkey.client.xlen(NAME))

    def restart(self) -> None:
        self.valkey.server.stop()
        self.valkey.server.start()


@dataclass
class AmqpOffice:
    """A queue. It is declared by who reads from it; until then a message would be lost, so this declares it, too."""

    rabbit: Rabbit
    arguments: dict[str, Any] = field(
        default_factory=lambda: {"x-queue-type": "quorum", "x-delivery-limit": 20}
    )
    kind = "amqp"

    @property
    def url(self) -> str:
        return self.rabbit.url

    def send(self, *bodies: bytes, **properties: Any) -> None:
        import amqp

        with Connection(self.url) as line, line.channel() as channel:
            self._declare(channel)
            channel.confirm_select()
            for body in bodies:
                until(lambda body=body: self._confirmed(channel, amqp.Message(body, **properties)), "a place")

    def _confirmed(self, channel: Any, message: Any) -> bool:
        """Whether the queue has it: one that was restarted just now says no at first."""
        import amqp

        try:
            channel.basic_publish_confirm(message, routing_key=NAME)
        except amqp.exceptions.MessageNacked:
            return False
        return True

    def _declare(self, channel: Any) -> Any:
        return channel.queue_declare(NAME, durable=True, auto_delete=False, arguments=self.arguments)

    def waiting(self) -> int:
        with Connection(self.url) as line, line.channel() as channel:
            return int(channel.queue_declare(NAME, passive=True).message_count)

    def forget(self) -> None:
        with Connection(self.url) as line, line.channel() as channel:
            channel.queue_delete(NAME)

    def restart(self) -> None:
        self.rabbit.server.stop()
        self.rabbit.server.start()


class Done(NamedTuple):
    """How a command ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class House:
    """A folder with a registry, a ledger and a vault, and `remand intake` as processes."""

    folder: Path
    office: Any
    vault: Valkey
    environment: dict[str, str]
    database: Database
    started: list[Command] = field(default_factory=list)

    def start(self, *arguments: str, **variables: str) -> Command:
        environment = {**self.environment, **variables}
        self.started.append(Command(["intake", *arguments], self.folder, environment, f"{len(self.started)}"))
        return self.started[-1]

    def remand(self, *arguments: str, **variables: str) -> Done:
        command = self.start(*arguments, **variables)
        return Done(command.wait(), command.stdout, command.stderr)

    def once(self, *arguments: str, **variables: str) -> dict[str, int]:
        """Take what waits. What became of it."""
        done = self.remand("run", "--once", "--json", "--registry", "works:works", *arguments, **variables)
        assert done.returncode in (0, 3), done.stderr
        tally: dict[str, int] = json.loads(done.stdout)
        assert done.returncode == (3 if tally["dead"] or tally["later"] else 0)
        return tally

    def log(self) -> str:
        """What all processes said to people."""
        return "".join(command.stderr for command in self.started)

    def dead(self) -> dict[str, Letter]:
        """Dead letters by reason."""
        return {letter.reason: letter for letter in listed(self.database)}

    def stored(self) -> dict[str, int]:
        """Entries with their versions."""
        with self.database.read() as connection:
            rows = connection.execute(select(entries.c.id, entries.c.version)).all()
        return {row.id: row.version for row in rows}

    def taken(self) -> list[str]:
        with self.database.read() as connection:
            return list(connection.execute(select(messages.c.id).order_by(messages.c.id)).scalars())

    def wanted(self) -> int:
        found = Registries(self.database).find("works")
        assert found is not None
        return found.wanted

    def bodies(self) -> dict[bytes, int]:
        """Keys of the vault with dead letters' messages, and the seconds that each has left."""
        found: dict[bytes, int] = {}
        for key in self.vault.client.scan_iter("remand:vault:{intake:dead/*"):
            found[key] = int(self.vault.client.ttl(key))  # type: ignore[arg-type]
        return found

    def quiet(self) -> bool:
        return self.office.waiting() == 0


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], Any]]:
    """Servers of this module, each started when it is asked for."""
    folder = new_folder("intake")
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            place = folder / name
            place.mkdir(mode=0o711)
            if name == "rabbit":
                try:
                    rabbit = Rabbit(place)
                except Missing as error:
                    pytest.skip(f"NOT PROVED on RabbitMQ: {error}")
                rabbit.mapper.start()
                made["mapper"] = rabbit.mapper
                rabbit.server.start()
                made[name] = rabbit
            else:
                made[name] = Valkey(place)
                made[name].server.start()
        return made[name]

    try:
        yield get
    finally:
        for name in reversed(made):
            (made[name] if name == "mapper" else made[name].server).stop()
            if isinstance(made[name], Valkey):
                made[name].client.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def built(servers: Callable[[str], Any], tmp_path: Path) -> Iterator[Callable[[str], House]]:
    houses: list[House] = []

    def build(kind: str) -> House:
        vault, source = servers("vault"), servers("source")
        for each in (vault, source):
            each.client.flushall()
        office: Any = RedisOffice(source) if kind == "redis" else AmqpOffice(servers("rabbit"))
        (tmp_path / "works.py").write_text(WORKS)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REMAND_")}
        environment = {
            **kept,
            "REMAND_BROKER_URL": source.broker_url,
            "REMAND_VAULT_URL": vault.vault_url,
            "REMAND_VAULT_KEYS": KeyRing.generate(),
            "REMAND_LEDGER_URL": f"sqlite:///{tmp_path}/ledger.db",
            "REMAND_INTAKE_LEASE": "0.3",
            "REMAND_INTAKE_MAX_BYTES": "20000",
            "REMAND_INTAKE_MAX_ENTRIES": "50",
            "REMAND_LOG_LEVEL": "DEBUG",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if kind == "amqp":
            environment["REMAND_INTAKE_URL"] = office.url
        database = Database(environment["REMAND_LEDGER_URL"])
        upgrade(database)
        houses.append(House(tmp_path, office, vault, environment, database))
        return houses[-1]

    yield build
    for house in houses:
        for command in house.started:
            command.end()
        house.database.dispose()
        if isinstance(house.office, AmqpOffice):
            house.office.forget()


@pytest.fixture(params=["redis", "amqp"])
def house(request: pytest.FixtureRequest, built: Callable[[str], House]) -> House:
    return built(request.param)


@pytest.fixture
def redis_house(built: Callable[[str], House]) -> House:
    return built("redis")


@pytest.fixture
def amqp_house(built: Callable[[str], House]) -> House:
    return built("amqp")


def body(identity: object = "m1", *titles: str, **more: Any) -> bytes:
    """A message with entries of these titles."""
    given: dict[str, Any] = {"id": identity, "registry": "works"}
    if titles:
        given["entries"] = [{"title": title} for title in titles]
    return json.dumps({**given, **more}).encode()


# ------------------------------------------------------------------------------------------------- what is taken


def test_a_message_is_stored_and_asks_for_a_reconciliation_and_is_gone_from_the_server(house: House) -> None:
    house.office.send(body("m1", "On computable numbers", "Ο λόγος"), body("m2", reconcile=True))
    assert house.once() == {"taken": 2, "redelivered": 0, "dead": 0, "later": 0}
    assert house.stored() == {"On computable numbers": 1, "Ο λόγος": 1}
    assert house.taken() == ["m1", "m2"]
    assert house.wanted() == 2
    assert house.quiet()


def test_many_messages_are_one_request_to_look_after(house: House) -> None:
    house.office.send(*(body(f"m{number}", f"title {number}", reconcile=True) for number in range(30)))
    assert house.once()["taken"] == 30
    assert len(house.stored()) == 30
    assert Registries(house.database).due(time.time() + 60) == ["works"]


def test_the_same_message_again_changes_nothing_and_another_under_its_id_is_dead(house: House) -> None:
    house.office.send(body("m1", "a"))
    house.once()
    spaced = json.dumps(json.loads(body("m1", "a")), indent=3).encode()
    house.office.send(body("m1", "a"), spaced, body("m1", "b"))
    assert house.once() == {"taken": 0, "redelivered": 2, "dead": 1, "later": 0}
    assert house.stored() == {"a": 1}
    assert house.wanted() == 1
    assert house.dead()["id_reused"].message_id == "m1"


def test_an_entry_that_comes_again_with_other_fields_is_changed(house: House) -> None:
    house.office.send(
        body("m1", "a", "b"),
        json.dumps({"id": "m2", "registry": "works", "entries": [{"title": "a", "year": 1936}]}).encode(),
    )
    house.once()
    assert house.stored() == {"a": 2, "b": 1}


# --------------------------------------------------------------------------------------------------- what is not

BAD: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "not_json", ""),
    "text": (MARKER.encode(), "not_json", ""),
    "raw bytes": (b"\x00\xff\xfe" + MARKER.encode(), "not_json", ""),
    "UTF-16": (json.dumps({"id": MARKER}).encode("utf-16"), "not_json", ""),
    "cut short": (body("m", MARKER)[:-2], "not_json", ""),
    "two": (body("m", MARKER) + body("n", MARKER), "not_json", ""),
    "deep": (b'{"id": "m", "registry": "works", "entries": [{"title": ' + b"[" * 9_000, "not_json", ""),
    "a lone surrogate": (body("m", MARKER + "\ud800"), "not_json", ""),
    "NaN": (body("nan", MARKER, entries=[{"title": MARKER, "year": float("nan")}]), "not_json", "nan"),
    "infinity": (b'{"id": "inf", "registry": "works", "entries": [{"title": "a", "year": 1e999}]}', "not_json", "inf"),
    "a number without end": (b'{"id": "m", "registry": ' + b"9" * 5_000 + b"}", "not_json", ""),
    "a list": (json.dumps([MARKER]).encode(), "schema", ""),
    "null": (b"null", "schema", ""),
    "no id": (json.dumps({"registry": "works", "reconcile": True}).encode(), "schema", ""),
    "an id that is a number": (body(7, MARKER), "schema", ""),
    "an id without end": (body(MARKER * 50, "a"), "schema", ""),
    "an id of two lines": (body(f"a\n{MARKER}", "a"), "schema", ""),
    "an unknown field": (body("extra", "a", **{MARKER: MARKER}), "schema", "extra"),
    "nothing asked": (body("idle"), "schema", "idle"),
    "no entry": (body("empty", entries=[]), "schema", "empty"),
    "an entry that is text": (body("flat", entries=[MARKER]), "schema", "flat"),
    "reconcile that is text": (body("yes", reconcile="true"), "schema", "yes"),
    "a registry that is none": (body("list", "a", registry=[MARKER]), "schema", "list"),
    "an unknown registry": (body("lost", MARKER, registry="nowhere"), "unknown_registry", "lost"),
    "a registry with a zero byte": (body("zero", MARKER, registry="works\0"), "schema", "zero"),
    "an entry without a title": (body("untitled", entries=[{"title": "a"}, {MARKER: MARKER}]), "bad_entry", "untitled"),
    "an entry that raises": (body("raises", "fine", f"{MARKER} raise"), "bad_entry", "raises"),
    "an entry without a key": (body("keyless", f"{MARKER}\n"), "bad_entry", "keyless"),
    "too many entries": (body("many", *(f"t{number}" for number in range(51))), "too_large", "many"),
    "too many bytes": (body("large", MARKER * 2_000), "too_large", ""),
}  # fmt: skip


def test_what_cannot_be_taken_is_dead_with_a_reason_and_what_is_behind_it_is_served(house: House) -> None:
    for content, _, _ in BAD.values():
        house.office.send(content)
    house.office.send(body("last", "good"))
    assert house.once() == {"taken": 1, "redelivered": 0, "dead": len(BAD), "later": 0}
    assert house.stored() == {"good": 1}
    assert house.quiet()
    letters = sorted(listed(house.database), key=lambda letter: letter.id)
    found = [(letter.reason, letter.message_id, letter.size) for letter in letters]
    assert found == [(reason, shown, len(content)) for content, reason, shown in BAD.values()]
    assert {letter.source for letter in letters} == {house.office.kind}
    details = {name: letter.detail for name, letter in zip(BAD, letters, strict=True)}
    assert details["an entry without a title"] == "entries.1: schema_mismatch"
    assert details["an entry that raises"] == "entries.1: text_raised"
    assert details["an unknown field"] == "extra_forbidden"
    assert details["an entry that is text"] == "entries.0: dict_type"


def test_nothing_of_a_bad_message_is_shown_and_its_body_is_in_the_vault_alone(house: House) -> None:
    for content, _, _ in BAD.values():
        house.office.send(content)
    house.once()
    for arguments in (["dead"], ["dead", "--json"], ["retry", "--all"], ["drop", "99"]):
        shown = house.remand(*arguments)
        assert MARKER not in shown.stdout + shown.stderr
        assert "Traceback" not in shown.stderr
    assert MARKER not in house.log()
    # Too large, or nothing: those two are not kept.
    bodies = house.bodies()
    assert len(bodies) == len(BAD) - 2
    assert all(0 < left <= 7 * 86_400 for left in bodies.values())
    assert not [key for key in bodies if MARKER.encode() in b"".join(house.vault.client.hvals(key))]  # type: ignore[arg-type]
    with house.database.read() as connection:
        assert MARKER not in repr(connection.execute(select(dead)).all())
        assert MARKER not in repr(connection.execute(select(records)).all())


def test_ten_megabytes_are_refused_and_not_kept(house: House) -> None:
    house.office.send(body("huge", MARKER + "x" * 10_000_000), body("m1", "a"))
    assert house.once()["dead"] == 1
    letter = house.dead()["too_large"]
    assert letter.size > 10_000_000
    assert letter.kept == 0
    assert house.bodies() == {}
    assert house.taken() == ["m1"]


def test_the_same_garbage_again_and_again_is_one_letter(house: House) -> None:
    house.office.send(*[MARKER.encode()] * 5)
    house.once()
    (letter,) = listed(house.database)
    assert letter.times == 5
    assert len(house.bodies()) == 1


def test_a_registry_that_nobody_made_known_has_no_messages(house: House) -> None:
    house.office.send(body("m1", "a"))
    assert house.remand("--once").returncode == 3
    (letter,) = house.dead().values()
    assert (letter.reason, letter.registry, letter.message_id) == ("unknown_registry", "works", "m1")
    house.once()  # makes it known
    assert house.remand("retry", str(letter.id)).returncode == 0
    assert house.stored() == {"a": 1}


# ------------------------------------------------------------------------------------------------ dead letters


def test_a_letter_is_retried_once_its_registry_is_mended(house: House) -> None:
    house.office.send(body("m1", "a raise"), body("m2", "b raise"))
    house.once()
    refused = house.remand("retry", "--all", "--json")
    assert refused.returncode == 1
    assert [each["result"] for each in json.loads(refused.stdout)] == ["bad_entry", "bad_entry"]
    (house.folder / "works.py").write_text(WORKS.replace("raise ValueError(work.title)", "pass"))
    first = min(letter.id for letter in listed(house.database))
    assert house.remand("retry", str(first)).returncode == 0
    assert house.stored() == {"a raise": 1}
    assert len(house.bodies()) == 1
    states = {letter.id: letter.state for letter in listed(house.database, settled=True)}
    assert states == {first: "retried", first + 1: "dead"}
    # What was retried is a message that was taken: the sender's own second try changes nothing.
    house.office.send(body("m1", "a raise"))
    assert house.once()["redelivered"] == 1
    again = house.remand("retry", str(first))
    assert again.returncode == 2
    assert "No dead letter" in again.stderr


def test_a_letter_is_dropped_with_its_message(house: House) -> None:
    house.office.send(MARKER.encode(), b"{}")
    house.once()
    (shown,) = (
        each for each in json.loads(house.remand("dead", "--json").stdout) if each["reason"] == "not_json"
    )
    assert house.remand("drop", str(shown["id"])).returncode == 0
    assert len(house.bodies()) == 1
    assert house.remand("drop", "--all").returncode == 0
    assert house.bodies() == {}
    assert json.loads(house.remand("dead", "--json").stdout) == []
    settled = json.loads(house.remand("dead", "--json", "--settled").stdout)
    assert [(each["state"], each["kept"]) for each in settled] == [("dropped", 0)] * 2


def test_a_message_that_has_expired_is_not_retried(redis_house: House) -> None:
    redis_house.office.send(MARKER.encode())
    redis_house.once()
    redis_house.vault.client.flushall()
    done = redis_house.remand("retry", "--all")
    assert done.returncode == 1
    assert "expired" in done.stderr
    assert list(redis_house.dead()) == ["not_json"]


# ------------------------------------------------------------------------------------------- crashes and company


def test_a_crash_between_the_ledger_and_the_acknowledgement_takes_nothing_twice(house: House) -> None:
    house.office.send(body("m1", "a"), body("m2", "b"))
    done = house.remand("run", "--once", "--registry", "works:works", REMAND_FAULTS="intake.recorded=kill")
    assert done.returncode == -signal.SIGKILL
    assert house.taken() == ["m1"]
    until(lambda: house.office.kind == "redis" or house.office.waiting() == 2, "the message is back")
    time.sleep(0.4)  # the lease
    assert house.once() == {"taken": 1, "redelivered": 1, "dead": 0, "later": 0}
    assert house.stored() == {"a": 1, "b": 1}
    assert house.wanted() == 2
    assert house.quiet()


def test_a_crash_after_a_dead_letter_leaves_one_letter(house: House) -> None:
    house.office.send(MARKER.encode())
    done = house.remand("run", "--once", REMAND_FAULTS="intake.recorded=kill")
    assert done.returncode == -signal.SIGKILL
    time.sleep(0.4)
    assert house.once()["dead"] == 1
    (letter,) = listed(house.database)
    assert (letter.reason, letter.times) == ("not_json", 2)
    assert len(house.bodies()) == 1


def test_a_message_that_ends_every_process_is_dead_in_the_end_and_its_neighbours_are_taken(
    house: House,
) -> None:
    house.office.send(body("m1", "a"), body("poison", "die"), body("m2", "b"))
    deaths = 0
    for _ in range(10):
        done = house.remand("run", "--once", "--registry", "works:works")
        if done.returncode == -signal.SIGKILL:
            deaths += 1
        elif house.quiet():
            break
        time.sleep(0.4)
    assert deaths == 5
    assert house.taken() == ["m1", "m2"]
    (letter,) = listed(house.database)
    assert letter.reason == "redelivered"
    assert letter.kept == len(body("poison", "die"))
    assert house.quiet()


def test_two_processes_take_each_message_once(house: House) -> None:
    house.office.send(*(body(f"m{number:03}", f"t{number % 40}") for number in range(200)), *[b"{"] * 3)
    both = [house.start("run", "--once", "--json", "--registry", "works:works") for _ in range(2)]
    assert [command.wait() for command in both] in ([0, 3], [3, 0], [3, 3])
    tallies = [json.loads(command.stdout) for command in both]
    assert sum(tally["taken"] for tally in tallies) == 200
    assert len(house.taken()) == 200
    assert house.wanted() == 200
    assert len(house.stored()) == 40
    (letter,) = listed(house.database)
    assert letter.times == 3


def test_a_registry_that_is_not_here_is_waited_for_and_others_are_served(house: House) -> None:
    house.once()
    (house.folder / "works.py").rename(house.folder / "elsewhere")
    process = house.start(REMAND_INTAKE_LEASE="1")
    house.office.send(body("m1", "a"), body("m2", "b"), MARKER.encode())
    until(lambda: "not_json" in house.dead(), "the message behind them")
    assert house.taken() == []
    (house.folder / "elsewhere").rename(house.folder / "works.py")
    until(lambda: house.taken() == ["m1", "m2"], "both are taken")
    until(house.quiet, "nothing waits")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert "works" in house.log()


def test_a_registry_that_stays_away_is_a_reason(house: House) -> None:
    house.once()
    (house.folder / "works.py").write_text(WORKS.replace('version="1", key', 'version="2", key'))
    process = house.start()
    house.office.send(body("m1", "a"))
    until(lambda: "registry_unavailable" in house.dead(), "a dead letter")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert house.quiet()
    house.once()  # makes the new version known
    assert house.remand("retry", "--all").returncode == 0
    assert house.stored() == {"a": 1}


# ----------------------------------------------------------------------------------------- an orderly process


def test_it_ends_after_the_message_in_hand_and_says_what_it_did(house: House) -> None:
    process = house.start("--registry", "works:works")
    house.office.send(body("m1", "a"), MARKER.encode())
    until(lambda: house.taken() == ["m1"] and house.dead(), "both are done")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert "messages: taken 1, redelivered 0, dead 1, later 0" in house.log()
    house.office.send(body("m2", "b"))
    assert house.once()["taken"] == 1


def test_a_server_that_goes_away_is_waited_for_and_that_is_said_once(house: House) -> None:
    if isinstance(house.office, AmqpOffice):
        # A young quorum queue of a single node that is killed does not always come back.
        house.office.arguments = {}
    house.office.send(body("m1", "a"))
    process = house.start("--registry", "works:works")
    until(lambda: house.taken() == ["m1"], "the first")
    house.office.restart()
    house.office.send(body("m2", "b"))
    until(lambda: house.taken() == ["m1", "m2"], "the second", 90)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    away = re.findall(rf"{NAME} cannot be used \((\w+)", house.log())
    assert 1 <= len(away) <= 3
    assert len(away) == len(set(away))
    assert f"{NAME} can be used again" in house.log()


def test_a_vault_that_goes_away_is_waited_for_and_no_message_is_lost(house: House) -> None:
    process = house.start("--registry", "works:works")
    house.office.send(body("m1", "a"))
    until(lambda: house.taken() == ["m1"], "the first")
    house.vault.server.stop()
    house.office.send(MARKER.encode(), body("m2", "b"))
    until(lambda: "the ledger or the vault cannot be used" in house.log(), "it is said")
    assert house.taken() == ["m1"]
    house.vault.server.start()
    until(lambda: house.taken() == ["m1", "m2"], "the second")
    assert list(house.dead()) == ["not_json"]
    assert len(house.bodies()) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_once_fails_where_a_server_cannot_be_reached(house: House) -> None:
    urls = {"redis": "redis://127.0.0.1:1/0", "amqp": "amqp://127.0.0.1:1//"}
    done = house.remand("--once", REMAND_INTAKE_URL=urls[house.office.kind])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_its_metrics_count_what_became_of_messages(house: House) -> None:
    process = house.start("--registry", "works:works", REMAND_METRICS_PORT="0")
    until(lambda: "metrics are served on port" in house.log(), "a port")
    found = re.search(r"metrics are served on port (\d+)", house.log())
    assert found is not None
    house.office.send(body("m1", "a"), MARKER.encode())
    until(lambda: house.taken() and house.dead(), "both are done")

    def fetch() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    for result in ("taken", "dead"):
        line = f'remand_intake_messages_total{{result="{result}",source="{house.office.kind}"}} 1.0'
        until(lambda line=line: line in fetch(), line)
    assert MARKER not in fetch()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_stream_and_a_queue_are_read_at_once(amqp_house: House) -> None:
    source = amqp_house.environment["REMAND_BROKER_URL"].removeprefix("redis+socket://")
    stream = redis.Redis(unix_socket_path=source)
    both = f"redis+socket://{source}, {amqp_house.office.url}"
    process = amqp_house.start("--registry", "works:works", REMAND_INTAKE_URL=both)
    amqp_house.office.send(body("m1", "a"))
    stream.xadd(NAME, {"json": body("m2", "b")})
    until(lambda: amqp_house.taken() == ["m1", "m2"], "both")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    stream.xadd(NAME, {"json": body("m3", "c")})
    amqp_house.office.send(body("m4", "d"))
    assert amqp_house.once(REMAND_INTAKE_URL=both)["taken"] == 2
    stream.close()


# ------------------------------------------------------------------------------------------- Redis Streams alone


def test_the_field_may_have_any_name_if_it_is_the_only_one(redis_house: House) -> None:
    client = redis_house.office.valkey.client
    client.xadd(NAME, {"data": body("m1", "a")})
    client.xadd(NAME, {"trace": MARKER, "json": body("m2", "b")})
    client.xadd(NAME, {"trace": MARKER, "payload": body("m3", "c")})
    assert redis_house.once()["taken"] == 2
    assert redis_house.taken() == ["m1", "m2"]
    (letter,) = listed(redis_house.database)
    assert (letter.reason, letter.kept) == ("no_body", 0)


def test_other_names_for_stream_and_group(redis_house: House) -> None:
    client = redis_house.office.valkey.client
    client.xadd("orders", {"json": body("m1", "a")})
    assert redis_house.once("--stream", "orders", "--group", "ours")["taken"] == 1
    assert [each["name"] for each in client.xinfo_groups("orders")] == [b"ours"]
    assert client.xlen("orders") == 0


def test_a_stream_that_is_deleted_is_made_again(redis_house: House) -> None:
    client = redis_house.office.valkey.client
    process = redis_house.start("--registry", "works:works")
    until(lambda: client.exists(NAME), "a group")
    client.flushall()
    redis_house.office.send(body("m1", "a"))
    until(lambda: redis_house.taken() == ["m1"], "it is taken")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_key_of_another_type_does_not_end_it(redis_house: House) -> None:
    client = redis_house.office.valkey.client
    client.rpush(NAME, MARKER)
    process = redis_house.start("--registry", "works:works")
    until(lambda: "cannot be used (ResponseError" in redis_house.log(), "it is said")
    client.delete(NAME)
    redis_house.office.send(body("m1", "a"))
    until(lambda: redis_house.taken() == ["m1"], "it is taken")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert MARKER not in redis_house.log()


def test_a_body_that_ends_whoever_reads_it_is_at_last_not_even_read(redis_house: House) -> None:
    redis_house.office.send(body("m1", "a"))
    client = redis_house.office.valkey.client
    client.xgroup_create(NAME, "remand", id="0")
    client.xreadgroup("remand", "other", {NAME: ">"})
    ((place, _),) = client.xrange(NAME)
    client.xclaim(NAME, "remand", "other", 0, [place], retrycount=6)
    time.sleep(0.4)
    assert redis_house.once()["dead"] == 1
    (letter,) = listed(redis_house.database)
    assert (letter.reason, letter.size, letter.kept) == ("redelivered", 0, 0)
    assert redis_house.quiet()


def test_consumers_that_are_long_gone_are_forgotten(
    redis_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remand_workers.intake import stream

    monkeypatch.setattr(stream, "_GONE", 50)
    client = redis_house.office.valkey.client
    redis_house.office.send(b"{")
    client.xgroup_create(NAME, "remand", id="0")
    client.xreadgroup("remand", "holds something", {NAME: ">"})
    client.xgroup_createconsumer(NAME, "remand", "holds nothing")
    time.sleep(0.1)
    made = stream.Stream(redis_house.office.url, name=NAME, group="remand", lease=1)
    made.open()
    made.close()
    assert [each["name"] for each in client.xinfo_consumers(NAME, "remand")] == [b"holds something"]


@pytest.mark.skipif(
    shutil.which("redis-cli") is None, reason="NOT PROVED with redis-cli: it is not installed"
)
def test_redis_cli_sends_what_the_page_says(redis_house: House) -> None:
    socket = redis_house.environment["REMAND_BROKER_URL"].removeprefix("redis+socket://")
    command = ["redis-cli", "-s", socket, "XADD", NAME, "*", "json", body("m1", "a").decode()]
    subprocess.run(command, check=True, capture_output=True)
    assert redis_house.once()["taken"] == 1


# --------------------------------------------------------------------------------------------------- AMQP alone


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}])
def test_a_queue_that_is_there_is_taken_as_it_is(amqp_house: House, arguments: dict[str, Any]) -> None:
    amqp_house.office.arguments = arguments
    amqp_house.office.send(body("m1", "a"))
    assert amqp_house.once()["taken"] == 1
    assert amqp_house.quiet()


def test_a_queue_that_is_not_there_is_made_to_last(amqp_house: House) -> None:
    assert amqp_house.once()["taken"] == 0
    # Declaring it with the same arguments is refused by the broker if it has others.
    amqp_house.office.send(body("m1", "a"))
    assert amqp_house.once()["taken"] == 1


def test_a_queue_that_is_deleted_is_made_again(amqp_house: House) -> None:
    amqp_house.office.send(body("m1", "a"))
    process = amqp_house.start("--registry", "works:works")
    until(lambda: amqp_house.taken() == ["m1"], "the first")
    amqp_house.office.forget()
    until(lambda: "can be used again" in amqp_house.log(), "it is there again")
    amqp_house.office.send(body("m2", "b"))
    until(lambda: amqp_house.taken() == ["m1", "m2"], "the second")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_properties_of_a_message_mean_nothing(amqp_house: House) -> None:
    headers = {"compression": "application/x-gzip", "task": "remand.produce", "x-delivery-count": MARKER}
    amqp_house.office.send(
        body("m1", "a"), content_type="application/x-python-serialize", content_encoding="binary",
        application_headers=headers,
    )  # fmt: skip
    raw = '{"id": "m2", "registry": "works", "entries": [{"title": "é"}]}'.encode()
    amqp_house.office.send(raw, content_type="text/plain", content_encoding="latin-1")
    assert amqp_house.once()["taken"] == 2
    assert amqp_house.stored() == {"a": 1, "é": 1}


@pytest.mark.skipif(
    shutil.which("rabbitmqadmin") is None, reason="NOT PROVED with rabbitmqadmin: it is not installed"
)
def test_rabbitmqadmin_publishes_what_the_page_says(built: Callable[[str], House]) -> None:
    house = built("redis")
    folder = new_folder("admin")
    try:
        rabbit = Rabbit(folder)
    except Missing as error:
        pytest.skip(f"NOT PROVED on RabbitMQ: {error}")
    port = free_port()
    (folder / "plugins").write_text("[rabbitmq_management].\n")
    with (folder / "rabbitmq.conf").open("a") as conf:
        conf.write(f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\n")
    try:
        rabbit.mapper.start()
        rabbit.server.start()
        until(lambda: listens(port), "its management")
        variables = {"REMAND_INTAKE_URL": rabbit.url}
        assert house.once(**variables)["taken"] == 0
        sent = subprocess.run(
            ["rabbitmqadmin", f"--port={port}", "publish", "exchange=amq.default", f"routing_key={NAME}",
             f"payload={body('m1', 'a').decode()}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert sent.stdout == "Message published\n"  # Else it says that it was not routed.
        assert house.once(**variables)["taken"] == 1
    finally:
        rabbit.server.stop()
        rabbit.mapper.stop()
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------------- commands


def test_the_schema_says_what_a_message_is(redis_house: House) -> None:
    schema = json.loads(redis_house.remand("schema").stdout)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["id", "registry"]
    assert set(schema["properties"]) == {"id", "registry", "entries", "reconcile"}
    page = Path(__file__).parents[2] / "docs" / "how-to" / "start-a-job-from-another-system.md"
    *_, printed = re.findall(r"^```json\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert json.loads(printed) == schema


@pytest.mark.parametrize(
    "arguments",
    [["drop"], ["retry"], ["retry", "--all", "1"], ["drop", "7"], ["retry", "x"], ["nonsense"],
     ["run", "--registry", "nowhere:works"]],
)  # fmt: skip
def test_a_command_that_makes_no_sense_is_refused(redis_house: House, arguments: list[str]) -> None:
    done = redis_house.remand(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_dead_letters_are_a_table_for_people(redis_house: House) -> None:
    assert "there are no dead letters" in redis_house.remand("dead").stderr
    redis_house.office.send(body("order 17", "a raise"))
    redis_house.once()
    shown = redis_house.remand("dead").stdout
    for word in ("order 17", "works", "bad_entry", "entries.0: text_raised", "redis"):
        assert word in shown
