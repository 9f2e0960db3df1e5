"""`ChatProducer` over real HTTP: requests, repairs, corrections, failures, accounting."""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from remand.context import Context, Correction, Produced, Usage
from remand.errors import Failure, OperationalFailure, PipelineError, StructuralFailure, Throttled
from remand.llm import ChatProducer
from remand.llm.client import close_clients, retry_after
from remand.testing import Reply, ScriptedModel, context
from remand_policy import SINGLE_RESPONSE_V1, canonical

MARKER = "MARKER-7f3a"


class Item(BaseModel):
    a: int


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("REMAND_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    yield
    close_clients()


def chat(
    server: ScriptedModel, output: Any = Item, prompt: Any = "Read {text}.", **settings: Any
) -> ChatProducer[Any]:
    return ChatProducer(output, prompt, **{"model": "m", "base_url": server.base_url, **settings})


def run(producer: ChatProducer[Any], correction: Correction | None = None, **overrides: Any) -> Produced:
    made = producer(context({"text": "x"}, **overrides), correction)
    assert isinstance(made, Produced)
    return made


def fail(producer: ChatProducer[Any], kind: type[Failure], correction: Correction | None = None) -> Failure:
    with pytest.raises(kind) as caught:
        producer(context({"text": "x"}), correction)
    error = caught.value
    assert type(error) is kind
    assert error.__cause__ is None
    assert error.__context__ is None
    assert pickle.loads(pickle.dumps(error)).code == error.code
    return error


CORRECTION = Correction(SINGLE_RESPONSE_V1, '{"a": 0}', "a must be one.")


class TestRequests:
    def test_a_value_comes_with_its_exact_response_and_account(self) -> None:
        text = '```json\n{"a": 1}\n```'
        with ScriptedModel(Reply(text, usage=(7, 3), model="real-name")) as server:
            made = run(chat(server))
        assert made.value == Item(a=1)
        assert made.generations == 1
        assert made.response is not None
        assert made.response.text == text
        assert made.response.usage == Usage(7, 3)
        assert (made.response.model, made.response.finish_reason) == ("real-name", "stop")
        assert made.response.usable

    def test_the_request_holds_prompt_schema_and_sampling_and_the_key_is_a_header(self) -> None:
        with ScriptedModel({"a": 1}) as server:
            producer = chat(
                server,
                api_key="sesame",
                system="Be exact.",
                temperature=0.5,
                top_p=0.9,
                max_tokens=99,
                seed=4,
                extra_body={"top_k": 5},
            )
            run(producer)
            (request,) = server.requests
        assert request.body == {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be exact."},
                {"role": "user", "content": "Read x."},
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "Item", "schema": Item.model_json_schema()},
            },
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 99,
            "seed": 4,
            "top_k": 5,
        }
        assert request.headers["authorization"] == "Bearer sesame"

    def test_a_correction_appends_exactly_two_messages_to_the_same_request(self) -> None:
        with ScriptedModel({"a": 1}) as server:
            producer = chat(server)
            run(producer)
            run(producer, CORRECTION, attempt=2)
            run(producer, attempt=3)
            first, second, third = (request.body for request in server.requests)
        assert json.dumps(first) == json.dumps(third)
        assert second["messages"] == [
            *first["messages"],
            {"role": "assistant", "content": '{"a": 0}'},
            {"role": "user", "content": "a must be one."},
        ]
        assert {**second, "messages": None} == {**first, "messages": None}

    def test_settings_come_from_the_environment_when_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        producer: ChatProducer[Item] = ChatProducer(Item, "Read {text}.")
        with pytest.raises(PipelineError, match="REMAND_MODEL"):
            producer.describe()
        with pytest.raises(PipelineError, match="REMAND_MODEL"):
            producer(context({"text": "x"}))
        with ScriptedModel({"a": 1}) as server:
            monkeypatch.setenv("REMAND_MODEL", "from-env")
            with pytest.raises(PipelineError, match="REMAND_MODEL_BASE_URL"):
                producer(context({"text": "x"}))
            monkeypatch.setenv("REMAND_MODEL_BASE_URL", server.base_url)
            monkeypatch.setenv("REMAND_MODEL_API_KEY", "key-from-env")
            monkeypatch.setenv("OPENAI_API_KEY", "of-another-server")
            run(producer)
            monkeypatch.delenv("REMAND_MODEL_API_KEY")
            run(producer)
            named, nameless = server.requests
        assert named.body["model"] == "from-env"
        assert named.headers["authorization"] == "Bearer key-from-env"
        assert "of-another-server" not in str(nameless.headers)
        assert producer.describe()["model"] == "from-env"

    def test_a_function_of_the_context_gives_the_messages(self) -> None:
        def messages(context: Context) -> list[dict[str, str]]:
            return [
                {"role": "user", "content": f"{context.input['text']} after {context.previous}"},
                {"role": "assistant", "content": "ok"},
            ]

        with ScriptedModel({"a": 1}) as server:
            run(chat(server, prompt=messages), previous=5)
            assert server.requests[0].messages == [
                {"role": "user", "content": "x after 5"},
                {"role": "assistant", "content": "ok"},
            ]

    def test_lone_surrogates_of_an_input_do_not_reach_the_wire(self) -> None:
        with ScriptedModel({"a": 1}) as server:
            chat(server)(context({"text": "a\ud800b \U0001f600"}))
            assert server.requests[0].messages[0]["content"] == "Read a\ufffdb \U0001f600."


class TestRepairs:
    def test_a_repair_shows_the_malformed_reply_and_where_it_fails(self) -> None:
        with ScriptedModel(['{"b": "secret"}', {"a": 1}]) as server:
            made = run(chat(server))
            first, second = (request.body for request in server.requests)
        assert made.generations == 2
        assert made.response is not None
        assert made.response.text == '{"a": 1}'
        assert made.response.usage == Usage(20, 10)
        assert second["messages"][: len(first["messages"])] == first["messages"]
        reply, words = second["messages"][len(first["messages"]) :]
        assert reply == {"role": "assistant", "content": '{"b": "secret"}'}
        assert words["role"] == "user"
        assert "- at `a`: missing" in words["content"]
        assert "secret" not in words["content"]
        assert {**second, "messages": None} == {**first, "messages": None}

    def test_repairs_never_accumulate_and_keep_the_correction(self) -> None:
        with ScriptedModel(["bad one", "bad two", "bad three", {"a": 1}]) as server:
            made = run(chat(server, repairs=3), CORRECTION)
            lengths = [len(request.messages) for request in server.requests]
            third = server.requests[2].messages
        assert made.generations == 4
        assert lengths == [3, 5, 5, 5]
        assert [message["content"] for message in third[1:4]] == ['{"a": 0}', "a must be one.", "bad two"]

    def test_always_malformed_fails_after_one_and_repairs_generations(self) -> None:
        with ScriptedModel("never json") as server:
            for repairs in (0, 1, 3):
                server.reset()
                error = fail(chat(server, repairs=repairs), StructuralFailure)
                assert (error.code, error.generations) == ("no_json", 1 + repairs)
                assert error.usage == Usage(10, 5) + Usage(10 * repairs, 5 * repairs)
                assert server.generations == 1 + repairs
                assert len(server.requests) == 1 + repairs

    @pytest.mark.parametrize(
        ("reply", "code"),
        [
            (Reply(""), "empty_response"),
            (Reply(" \n"), "empty_response"),
            (Reply(None), "empty_response"),
            (Reply(None, tool_calls=[{"id": "1"}], finish_reason="tool_calls"), "tool_calls_only"),
            (Reply("", tool_calls=[{"id": "1"}]), "tool_calls_only"),
            (Reply('{"a": 1}', finish_reason="tool_calls"), "tool_calls_only"),
            (Reply(None, refusal="No."), "refusal"),
            (Reply('{"a": 1}', finish_reason="content_filter"), "content_filter"),
            (Reply("", finish_reason="length"), "truncated"),
            (Reply("x" * (4 * 1024 * 1024 + 1)), "too_large"),
            (Reply(raw=b'{"choices":[' + b" " * (30 * 1024 * 1024)), "too_large"),
        ],
        ids=range(11),
    )
    def test_no_repair_is_paid_for_where_there_is_nothing_to_show(self, reply: Reply, code: str) -> None:
        with ScriptedModel([reply, {"a": 1}]) as server:
            error = fail(chat(server, repairs=5), StructuralFailure)
            assert (error.code, error.generations, server.generations) == (code, 1, 1)

    def test_a_reply_cut_off_is_repaired_once_and_never_twice(self) -> None:
        cut = Reply('{"a": 1}', finish_reason="length")
        with ScriptedModel([cut, {"a": 2}]) as server:
            assert run(chat(server)).value == Item(a=2)
        with ScriptedModel(cut) as server:
            error = fail(chat(server, repairs=5), StructuralFailure)
            assert (error.code, error.generations, server.generations) == ("truncated", 2, 2)
        with ScriptedModel([cut, "bad", cut]) as server:
            assert fail(chat(server, repairs=5), StructuralFailure).generations == 3

    def test_failures_during_a_repair_count_what_came_before(self) -> None:
        for reply, kind, generations in (
            (Reply(status=500), OperationalFailure, 2),
            (Reply(status=429), Throttled, 1),
            (Reply(drop=True), OperationalFailure, 2),
        ):
            with ScriptedModel(["bad", reply]) as server:
                error = fail(chat(server, repairs=2), kind)
                assert (error.generations, error.usage) == (generations, Usage(10, 5))
                assert server.generations == generations

    def test_an_output_type_whose_own_code_breaks_is_not_asked_about_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(BaseModel):
            a: int

            @field_validator("a")
            @classmethod
            def check(cls, value: int) -> int:
                raise KeyError(MARKER)

        with ScriptedModel({"a": 1}) as server:
            error = fail(chat(server, Broken), StructuralFailure)
        assert (error.code, error.generations) == ("output_type", 1)
        assert "KeyError" in caplog.text
        assert "test_chat_producer:check" in caplog.text
        assert MARKER not in caplog.text


class TestFormats:
    def test_auto_falls_back_to_json_mode_and_remembers(self) -> None:
        with ScriptedModel({"a": 1}, formats=["json_object", "text"]) as server:
            producer = chat(server, repairs=0)
            assert run(producer).generations == 1
            assert run(producer).generations == 1
            refused, first, second = (request.body for request in server.requests)
            assert server.generations == 2
        assert refused["response_format"]["type"] == "json_schema"
        assert first["response_format"] == {"type": "json_object"}
        assert json.dumps(first) == json.dumps(second)
        (message,) = first["messages"]
        assert message["content"].startswith("Read x.\n\n")
        assert '"title":"Item"' in message["content"]

    def test_auto_ends_at_text_and_the_correction_stays_last(self) -> None:
        with ScriptedModel({"a": 1}, formats=["text"]) as server:
            producer = chat(server)
            run(producer, CORRECTION)
            run(producer, CORRECTION)
            bodies = [request.body for request in server.requests]
        assert [body.get("response_format", {}).get("type") for body in bodies] == [
            "json_schema",
            "json_object",
            None,
            None,
        ]
        assert "JSON Schema" in bodies[3]["messages"][0]["content"]
        assert [message["content"] for message in bodies[3]["messages"][1:]] == ['{"a": 0}', "a must be one."]

    def test_json_mode_is_not_tried_for_a_list(self) -> None:
        with ScriptedModel("[1, 2]", formats=["json_object", "text"]) as server:
            assert run(chat(server, list[int])).value == [1, 2]
            assert "response_format" not in server.requests[-1].body

    @pytest.mark.parametrize("mode", ["json_schema", "json_object", "text"])
    def test_a_named_mode_is_kept_to(self, mode: str) -> None:
        with ScriptedModel({"a": 1}) as server:
            run(chat(server, response_format=mode))
            body = server.requests[0].body
        assert body.get("response_format", {"type": "text"})["type"] == mode
        assert ("JSON Schema" in body["messages"][0]["content"]) == (mode != "json_schema")

    def test_a_named_mode_that_is_refused_is_an_operational_failure(self) -> None:
        with ScriptedModel({"a": 1}, formats=["text"]) as server:
            error = fail(chat(server, response_format="json_schema"), OperationalFailure)
            assert (error.code, error.generations, len(server.requests)) == ("response_format", 0, 1)

    def test_another_cause_of_refusal_changes_nothing_for_later_calls(self) -> None:
        refusal = Reply("your prompt about response_format is too long", status=400)
        with ScriptedModel([refusal, refusal, refusal, {"a": 1}]) as server:
            producer = chat(server)
            error = fail(producer, OperationalFailure)
            assert (error.code, error.generations) == ("http_400", 1)
            run(producer)
            assert server.requests[-1].body["response_format"]["type"] == "json_schema"


class TestFailures:
    @pytest.mark.parametrize("status", [307, 400, 401, 403, 404, 408, 422, 500, 502, 503])
    def test_a_status_is_an_operational_failure_and_is_sent_once(self, status: int) -> None:
        reply = Reply(MARKER, status=status, headers={"retry-after": "1", "location": "/v1/chat/completions"})
        with ScriptedModel(reply) as server:
            error = fail(chat(server), OperationalFailure)
            assert (error.code, error.generations, len(server.requests)) == (f"http_{status}", 1, 1)
        assert MARKER not in repr(error)

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"<html>",
            b"[]",
            b"{}",
            b'{"choices": []}',
            b'{"choices": [1]}',
            b'{"choices": [{"message": null}]}',
            b'{"choices": [{"message": {"content": [1]}}]}',
            b"\xff\xfe",
            b"[" * 200_000,
        ],
    )
    def test_a_body_that_is_no_completion_is_an_operational_failure(self, raw: bytes) -> None:
        with ScriptedModel(Reply(raw=raw)) as server:
            error = fail(chat(server), OperationalFailure)
            assert (error.code, error.generations, len(server.requests)) == ("bad_response", 1, 1)

    def test_usage_that_is_nonsense_counts_as_nothing(self) -> None:
        message = {"choices": [{"message": {"content": '{"a": 1}'}, "finish_reason": 5}], "model": 7}
        for usage in (None, 5, {"prompt_tokens": -1, "completion_tokens": "x"}, {"prompt_tokens": 10**30}):
            with ScriptedModel(Reply(raw=json.dumps({**message, "usage": usage}).encode())) as server:
                made = run(chat(server))
            assert made.response is not None
            assert made.response.usage in (None, Usage(0, 0))

    def test_a_server_that_is_not_there_is_no_generation(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
            error = fail(ChatProducer(Item, "x", model="m", base_url=url), OperationalFailure)
        assert (error.code, error.generations) == ("connection", 0)

    def test_a_name_that_does_not_resolve_is_no_generation(self) -> None:
        error = fail(
            ChatProducer(Item, "x", model="m", base_url="http://nowhere.invalid/v1", timeout=20),
            OperationalFailure,
        )
        assert (error.code, error.generations) == ("connection", 0)

    def test_a_dropped_connection_is_a_generation(self) -> None:
        with ScriptedModel([{"a": 1}, Reply(drop=True), {"a": 2}]) as server:
            producer = chat(server)
            run(producer)
            error = fail(producer, OperationalFailure)
            assert (error.code, error.generations, server.generations) == ("connection", 1, 2)
            assert run(producer).value == Item(a=2)

    def test_a_server_that_went_away_and_came_back_is_reached_again(self) -> None:
        with ScriptedModel({"a": 1}) as server:
            producer = chat(server)
            run(producer)
            port = int(server.url.rpartition(":")[2])
        with ScriptedModel({"a": 2}, port=port) as server:
            assert run(producer).value == Item(a=2)

    @pytest.mark.parametrize("reply", [Reply("{}", delay=30.0), Reply('{"a": 1}', drip=0.02)])
    def test_the_time_limit_holds_for_the_whole_call(self, reply: Reply) -> None:
        with ScriptedModel(reply) as server:
            start = time.monotonic()
            error = fail(chat(server, timeout=0.4), OperationalFailure)
            assert 0.35 < time.monotonic() - start < 5.0
        assert (error.code, error.generations) == ("timeout", 1)

    def test_starting_the_client_takes_none_of_a_calls_time(self) -> None:
        code = """
import builtins, time
original = builtins.__import__
def slow(name, *rest, **named):
    if name == "openai" and not slow.done:
        slow.done = True
        time.sleep(2.5)
    return original(name, *rest, **named)
slow.done = False
builtins.__import__ = slow
from remand.llm import ChatProducer
from remand.testing import ScriptedModel, context
with ScriptedModel({"a": 1}) as server:
    made = ChatProducer(dict, "x", model="m", base_url=server.base_url, timeout=2)(context({}))
print(slow.done, made.value)
"""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == "True {'a': 1}"

    def test_a_server_that_accepts_and_says_nothing_times_out(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
            producer = ChatProducer(Item, "x" * 8_000_000, model="m", base_url=url, timeout=0.4)
            start = time.monotonic()
            error = fail(producer, OperationalFailure)
        assert (error.code, error.generations) == ("timeout", 1)
        assert time.monotonic() - start < 5.0

    def test_after_a_time_out_the_late_answer_is_not_taken_for_the_next(self) -> None:
        with ScriptedModel([Reply('{"a": 1}', delay=0.6), Reply('{"a": 2}')]) as server:
            fail(chat(server, timeout=0.3), OperationalFailure)
            patient = chat(server)  # of the same server, so it borrows from the same connections
            for _ in range(3):
                assert run(patient).value == Item(a=2)

    def test_429_says_when_to_come_back(self) -> None:
        for headers, expected in (
            ({"retry-after": "7"}, 7.0),
            ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
            ({}, None),
        ):
            with ScriptedModel(Reply(status=429, headers=headers)) as server:
                error = fail(chat(server), Throttled)
                assert isinstance(error, Throttled)
                assert (error.retry_after, error.generations, len(server.requests)) == (expected, 0, 1)

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({"retry-after": formatdate(5_030, usegmt=True), "date": formatdate(5_000, usegmt=True)}, 30.0),
            ({"retry-after": formatdate(5_030, usegmt=True)}, 1_030.0),
            ({"retry-after": formatdate(1_000, usegmt=True)}, 0.0),
            ({"retry-after": "1e9"}, 86_400.0),
            ({"retry-after": "-3"}, None),
            ({"retry-after": "nan"}, None),
            ({"retry-after": "inf"}, None),
            ({"retry-after": "soon"}, None),
            ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
            ({"retry-after": "Fri, 99 Foo 99999 99:99:99 GMT"}, None),
        ],
    )
    def test_waits_are_bounded_and_dates_go_by_the_servers_clock(
        self, headers: dict[str, str], expected: float | None
    ) -> None:
        assert retry_after(headers, now=4_000.0) == expected


class TestPrompts:
    @pytest.mark.parametrize(
        ("template", "fields", "expected"),
        [
            ("{a} {{b}} {c-d}", {"a": "{b}", "c-d": 1}, "{b} {b} 1"),
            ("{a}", {"a": {"z": "é", "b": [1, None]}}, '{"b": [1, null], "z": "é"}'),
            ("{a}{a}", {"a": True}, "truetrue"),
            ('{{"x": "{a}"}}', {"a": "1"}, '{"x": "1"}'),
            ("no place", 7, "no place"),
        ],
    )
    def test_a_template_is_filled(self, template: str, fields: Any, expected: str) -> None:
        with ScriptedModel({"a": 1}) as server:
            chat(server, prompt=template)(context(fields))
            assert server.requests[0].messages[0]["content"] == expected

    @pytest.mark.parametrize(
        "template",
        ["{", "}", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{ a }", "{a}}", "{{a}", "{a{b}}", "", " "],
    )
    def test_a_malformed_template_is_refused_at_construction(self, template: str) -> None:
        with pytest.raises(PipelineError, match="prompt"):
            ChatProducer(Item, template)

    def test_an_input_that_does_not_fit_the_template_asks_no_model(self) -> None:
        with ScriptedModel({"a": 1}) as server:
            for given, code in (
                ({"other": 1}, "prompt_field"),
                ("text", "prompt_input"),
                (None, "prompt_input"),
            ):
                with pytest.raises(OperationalFailure) as caught:
                    chat(server)(context(given))
                assert (caught.value.code, caught.value.generations) == (code, 0)
            assert server.requests == []

    def test_a_prompt_function_that_breaks_asks_no_model_and_says_where(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(context: Context) -> list[dict[str, str]]:
            raise ValueError(MARKER)

        with ScriptedModel({"a": 1}) as server:
            error = fail(chat(server, prompt=broken), OperationalFailure)
            assert (error.code, error.generations, server.requests) == ("prompt_function", 0, [])
        assert "ValueError at" in caplog.text
        assert ":broken:" in caplog.text
        assert MARKER not in caplog.text

    @pytest.mark.parametrize(
        "given",
        ["text", [], None, [1], [{"role": "robot", "content": "x"}], [{"role": "user", "content": 1}]],
    )
    def test_messages_that_are_none_are_refused(self, given: Any) -> None:
        def messages(context: Context) -> Any:
            return given

        with ScriptedModel({"a": 1}) as server:
            error = fail(chat(server, prompt=messages), OperationalFailure)
            assert (error.code, error.generations, server.requests) == ("prompt_messages", 0, [])


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"repairs": -1}, "repairs"),
            ({"timeout": 0}, "timeout"),
            ({"connect_timeout": 0}, "connect_timeout"),
            ({"temperature": float("nan")}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"top_p": 2}, "top_p"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": 1.5}, "max_tokens"),
            ({"seed": True}, "seed"),
            ({"system": ""}, "system"),
            ({"model": ""}, "model"),
            ({"extra_body": {"messages": []}}, "messages"),
            ({"extra_body": {"x": object()}}, "extra_body"),
            ({"extra_body": []}, "extra_body"),
            ({"response_format": "xml"}, "response_format"),
            ({"correction": "v9"}, "correction"),
            ({"prompt": 5}, "prompt"),
            ({"prompt": lambda context: []}, "version"),
        ],
        ids=range(18),
    )
    def test_a_wrong_setting_is_refused_by_name(self, settings: dict[str, Any], named: str) -> None:
        with pytest.raises(PipelineError, match=named):
            ChatProducer(**{"output": Item, "prompt": "x", **settings})

    def test_an_async_prompt_is_refused(self) -> None:
        async def prompt(context: Context) -> list[dict[str, str]]:
            return []

        with pytest.raises(PipelineError, match="async"):
            ChatProducer(Item, prompt)  # type: ignore[arg-type]

    def test_a_base_url_without_a_scheme_is_said(self) -> None:
        with pytest.raises(PipelineError, match="http"):
            ChatProducer(Item, "x", model="m", base_url="localhost:1")(context({}))

    def test_every_setting_that_shapes_the_reply_changes_the_description(self) -> None:
        base: dict[str, Any] = {"output": Item, "prompt": "x", "model": "m"}
        variants: list[dict[str, Any]] = [
            {},
            {"prompt": "y"},
            {"prompt": test_a_module_level_name_stands_for_a_function},
            {"model": "n"},
            {"version": "2"},
            {"name": "other"},
            {"output": list[int]},
            {"system": "s"},
            {"temperature": 0.0},
            {"top_p": 0.5},
            {"max_tokens": 5},
            {"seed": 1},
            {"extra_body": {"k": 1}},
            {"response_format": "text"},
            {"repairs": 2},
            {"correction": None},
        ]
        seen = {canonical(ChatProducer(**{**base, **variant}).describe()) for variant in variants}
        assert len(seen) == len(variants)

    def test_server_key_and_time_limits_are_not_in_the_description(self) -> None:
        one = ChatProducer(Item, "x", model="m").describe()
        two = ChatProducer(
            Item, "x", model="m", base_url="http://b/v1", api_key="k", timeout=9, connect_timeout=1
        )
        assert one == two.describe()

    def test_extra_body_is_a_copy(self) -> None:
        extra = {"stop": ["a"]}
        producer = ChatProducer(Item, "x", model="m", extra_body=extra)
        extra["stop"].append("b")
        assert producer.describe()["extra_body"] == {"stop": ["a"]}

    def test_representations_show_no_prompt_and_no_key(self) -> None:
        producer = ChatProducer(
            Item, MARKER, model="m", api_key=MARKER, base_url="http://b/v1", system=MARKER
        )
        assert MARKER not in repr(producer) + str(producer)

    def test_importing_imports_no_client(self) -> None:
        code = (
            "import sys, remand, remand.llm\n"
            "remand.llm.ChatProducer(int, 'x', model='m').describe()\n"
            "print([m for m in ('openai', 'httpx2', 'httpcore2') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_module_level_name_stands_for_a_function() -> None:
    producer = ChatProducer(Item, test_a_module_level_name_stands_for_a_function, model="m")  # type: ignore[arg-type]
    name = test_a_module_level_name_stands_for_a_function.__name__
    assert producer.describe()["prompt"] == {"function": f"{__name__}.{name}"}
    versioned = ChatProducer(Item, lambda context: [], model="m", version="3")
    assert "lambda" in versioned.describe()["prompt"]["function"]


def test_nothing_that_was_said_is_logged_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "httpx2", "httpcore2", "remand"):
        caplog.set_level(logging.DEBUG, logger=name)
    replies = [
        f"bad {MARKER}",
        {"a": 1},
        Reply(MARKER, status=500),
        Reply(MARKER, status=429),
        Reply(drop=True),
    ]
    with ScriptedModel(replies) as server:
        producer = chat(server, prompt=f"{MARKER} {{text}}", api_key=MARKER, system=MARKER)
        run(producer, Correction(SINGLE_RESPONSE_V1, MARKER, MARKER))
        for _ in range(3):
            with pytest.raises(Failure):
                run(producer)
    assert caplog.records
    assert MARKER not in caplog.text


def test_many_threads_make_progress_together() -> None:
    calls, threads, delay = 64, 32, 0.2
    with ScriptedModel(lambda request: Reply(request.messages[0]["content"], delay=delay)) as server:
        producer = chat(server, prompt='{{"a": {text}}}')
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda number: producer(context({"text": number})), range(threads)))
            start = time.monotonic()
            made = list(pool.map(lambda number: producer(context({"text": number})), range(calls)))
            elapsed = time.monotonic() - start
    assert [produced.value.a for produced in made] == list(range(calls))
    # Two rounds of the delay in parallel; one after the other it would be 64 of them.
    assert elapsed < 10 * delay


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_uses_connections_of_its_own() -> None:
    code = """
import os
from remand.llm import ChatProducer
from remand.testing import ScriptedModel, _Connection, context

made = []
original = _Connection.connection_made
_Connection.connection_made = lambda self, transport: (made.append(1), original(self, transport))
with ScriptedModel({"a": 1}) as server:
    producer = ChatProducer(dict, "x", model="m", base_url=server.base_url)
    producer(context({}))
    child = os.fork()
    if child == 0:
        producer(context({}))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    producer(context({}))
    print(status, server.generations, len(made))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
    )
    # The parent goes on with its one connection, the child has made another.
    assert done.stdout.split() == ["0", "3", "2"]


def test_idle_connections_are_shared_by_producers_of_one_server() -> None:
    with ScriptedModel({"a": 1}) as server:
        for _ in range(5):
            run(chat(server))
        assert len(server._connections) == 1
        close_clients()
        wait_until(lambda: not server._connections)


def wait_until(condition: Any) -> None:
    waiter = threading.Event()
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        waiter.wait(0.002)
