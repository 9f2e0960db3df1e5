"""The scripted model server, spoken to over plain HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from remand.errors import RemandError
from remand.testing import RecordedRequest, Reply, ScriptedModel, context


def post(
    connection: http.client.HTTPConnection, body: Any, path: str = "/v1/chat/completions"
) -> tuple[int, Any]:
    text = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", path, body=text, headers={"X-Marker": "seen"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def connect(model: ScriptedModel) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(model.url).netloc, timeout=20)


def content(answer: tuple[int, Any]) -> Any:
    return answer[1]["choices"][0]["message"]["content"]


ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def test_replies_come_in_order_and_the_last_repeats_over_one_connection() -> None:
    with ScriptedModel(["first", {"a": 1}, Reply("third", finish_reason="length")]) as model:
        connection = connect(model)
        answers = [post(connection, ASK) for _ in range(4)]
        connection.close()
    assert [content(answer) for answer in answers] == ["first", '{"a": 1}', "third", "third"]
    assert answers[2][1]["choices"][0]["finish_reason"] == "length"
    assert answers[0][1]["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_requests_are_recorded_with_lower_case_headers_and_arrival_time() -> None:
    before = time.monotonic()
    with ScriptedModel("x") as model:
        connection = connect(model)
        post(connection, ASK)
        connection.close()
        (request,) = model.requests
    assert request.body == ASK
    assert request.messages == ASK["messages"]
    assert request.headers["x-marker"] == "seen"
    assert before <= request.at <= time.monotonic()
    assert "hello" not in repr(request)


def test_a_function_answers_by_the_request() -> None:
    def script(request: RecordedRequest) -> str:
        return str(request.messages[0]["content"]).upper()

    with ScriptedModel(script) as model:
        connection = connect(model)
        assert content(post(connection, ASK)) == "HELLO"
        connection.close()


def test_a_function_that_raises_makes_a_500_and_keeps_the_exception() -> None:
    with ScriptedModel(lambda request: {}[request.body["model"]]) as model:
        connection = connect(model)
        assert post(connection, ASK)[0] == 500
        connection.close()
        assert [type(error) for error in model.errors] == [KeyError]


def test_generations_count_everything_but_429() -> None:
    replies = [Reply(status=429), Reply(status=500), Reply(drop=True), "fine"]
    with ScriptedModel(replies) as model:
        for expected in (429, 500, None, 200):
            connection = connect(model)
            if expected is None:
                with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
                    post(connection, ASK)
            else:
                assert post(connection, ASK)[0] == expected
            connection.close()
        assert model.generations == 3
        assert len(model.requests) == 4
        model.reset()
        assert (model.generations, model.requests) == (0, [])
        connection = connect(model)
        assert post(connection, ASK)[0] == 429
        connection.close()


def test_an_unknown_response_format_is_refused_and_uses_no_reply() -> None:
    with ScriptedModel(["first"], formats=["text"]) as model:
        connection = connect(model)
        status, body = post(connection, {**ASK, "response_format": {"type": "json_schema"}})
        assert (status, model.generations) == (400, 0)
        assert "response_format" in body["error"]["message"]
        assert content(post(connection, ASK)) == "first"
        connection.close()


@pytest.mark.parametrize("body", ["[]", "nothing", "[" * 100_000, '"text"'])
def test_a_body_that_is_no_object_is_refused_and_the_server_lives(body: str) -> None:
    with ScriptedModel("x") as model:
        connection = connect(model)
        assert post(connection, body)[0] == 400
        assert post(connection, ASK)[0] == 200
        connection.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"411"),
        (b"x" * 70_000, b"431"),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(sent: bytes, status: bytes) -> None:
    with ScriptedModel("x") as model:
        parts = urlsplit(model.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as line:
            line.sendall(sent)
            received = b""
            while data := line.recv(4096):
                received += data
    assert received.split(b" ", 2)[1] == status


def test_models_are_listed_and_other_paths_are_not_found() -> None:
    with ScriptedModel("x") as model:
        connection = connect(model)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "scripted"
        assert post(connection, ASK, "/v1/other")[0] == 404
        assert model.generations == 0
        connection.close()


def test_many_threads_are_each_answered_once() -> None:
    def call(number: int) -> Any:
        connection = connect(model)
        try:
            return [content(post(connection, {**ASK, "seed": number})) for _ in range(10)]
        finally:
            connection.close()

    with ScriptedModel(lambda request: str(request.body["seed"])) as model:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(call, range(16)))
        assert answers == [[str(number)] * 10 for number in range(16)]
        assert model.generations == 160


def test_a_delayed_answer_holds_up_nobody_else() -> None:
    replies = iter([Reply("slow", delay=30.0)])
    with ScriptedModel(lambda _: next(replies, "quick")) as model:
        waiting, other = connect(model), connect(model)
        waiting.request("POST", "/v1/chat/completions", body=json.dumps(ASK))
        while not model.requests:
            time.sleep(0.001)
        assert content(post(other, ASK)) == "quick"
        waiting.close()
        other.close()


def test_only_the_latest_requests_are_kept() -> None:
    with ScriptedModel("x", keep=2) as model:
        connection = connect(model)
        for number in range(4):
            post(connection, {**ASK, "seed": number})
        connection.close()
        assert [request.body["seed"] for request in model.requests] == [2, 3]


def test_misuse_is_said() -> None:
    with pytest.raises(ValueError, match="empty"):
        ScriptedModel([])
    with pytest.raises(RemandError, match="context manager"):
        _ = ScriptedModel("x").base_url
    with ScriptedModel("x") as model:
        port = urlsplit(model.url).port
        assert port is not None
        with pytest.raises(OSError, match=r"[Aa]ddress"):
            ScriptedModel("x", port=port).start()
    model.close()


def test_as_a_process_it_prints_its_url_and_serves_until_terminated() -> None:
    command = [sys.executable, "-m", "remand.testing", "--reply", "one", "--reply", '{"a":1}']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        assert url.endswith("/v1")
        assert [content(post(connection, ASK)) for _ in range(3)] == ["one", '{"a":1}', '{"a":1}']
        connection.close()
        process.terminate()
        assert process.wait(20) == 0


def test_context_has_defaults_and_takes_overrides() -> None:
    made = context({"text": "x"}, attempt=3, previous=[1])
    assert (made.input, made.attempt, made.previous, made.validation) == ({"text": "x"}, 3, [1], "complete")


def test_it_stands_on_the_standard_library_alone() -> None:
    code = "import sys, remand.testing; print([m for m in ('openai', 'httpx', 'httpx2') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
