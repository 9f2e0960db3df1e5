"""What tests of pipelines need: a model server that follows a script, and contexts made by hand.

`ScriptedModel` speaks the OpenAI chat protocol on 127.0.0.1, so that the real client code is tested over real HTTP.
It is for tests and benchmarks: it listens on the loopback interface only, checks no credentials, does not stream,
and never writes what it was sent anywhere. Run `python -m remand.testing --reply '{"a": 1}'` for one as a process
of its own. Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from email.utils import formatdate
from types import TracebackType
from typing import Any, Final, TypeAlias

from .context import Context
from .errors import RemandError

MAX_HEADERS: Final = 64 * 1024
MAX_BODY: Final = 64 * 1024 * 1024
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    429: "Too Many Requests",
}


def context(input: Any, **overrides: Any) -> Context:
    """A `Context` for unit tests of validators and producers; `overrides` are its other fields."""
    return Context(
        **{"input": input, "run_id": "test", "item": 0, "stage": "test", "attempt": 1, **overrides}
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer. A status of 400 or more makes it an error object with `content` as its message.

    `delay` is in seconds before the answer, `drip` in seconds between the single bytes of it. `drop` closes the
    connection without an answer. `raw` replaces the body. `usage` is `(prompt_tokens, completion_tokens)`.
    """

    content: str | None = ""
    _: KW_ONLY
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    finish_reason: str | None = "stop"
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    refusal: str | None = None
    usage: tuple[int, int] | None = (10, 5)
    model: str = "scripted"
    delay: float = 0.0
    drip: float = 0.0
    drop: bool = False
    raw: bytes | None = None

    def body(self) -> bytes:
        """The bytes of the answer's body."""
        if self.raw is not None:
            return self.raw
        if self.status >= 400:
            return json.dumps({"error": {"message": self.content or "scripted", "type": "scripted"}}).encode()
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls is not None:
            message["tool_calls"] = list(self.tool_calls)
        if self.refusal is not None:
            message["refusal"] = self.refusal
        answer: dict[str, Any] = {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 0,
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": self.finish_reason}],
        }
        if self.usage is not None:
            prompt, completion = self.usage
            answer["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            }
        return json.dumps(answer).encode()


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A chat request as it arrived: the JSON body, headers under lower-case names, `time.monotonic()` seconds."""

    body: Any = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    at: float

    @property
    def messages(self) -> list[Any]:
        """The messages of the body."""
        return list(self.body["messages"])


Answer: TypeAlias = "str | Mapping[str, Any] | list[Any] | Reply"
Replies: TypeAlias = "Answer | Sequence[Answer] | Callable[[RecordedRequest], Answer]"


class ScriptedModel:
    """An OpenAI-compatible server that answers by script. A context manager; `base_url` is what clients need.

    `replies` is a sequence used in order, whose last entry repeats for ever; or one reply; or a function of the
    `RecordedRequest`, called on the server's one thread, which must not block (use `Reply(delay=...)`). A reply is
    a `Reply`, the assistant's text, or a value that is sent as JSON text. A function that raises makes a 500 and
    leaves its exception in `errors`. `formats` are the `response_format` types the server knows: a request with
    another one is refused with a 400, uses up no reply and is no generation. The last `keep` requests are recorded.
    """

    def __init__(
        self,
        replies: Replies = "",
        *,
        port: int = 0,
        formats: Sequence[str] = ("json_schema", "json_object", "text"),
        keep: int = 10_000,
    ) -> None:
        if isinstance(replies, str | Mapping | Reply):
            replies = [replies]
        if not callable(replies) and not replies:
            raise ValueError("ScriptedModel: the script is empty; give at least one reply")
        self._script = replies
        self._formats = frozenset(formats)
        self._port = port
        self._lock = threading.Lock()
        self._requests: deque[RecordedRequest] = deque(maxlen=keep)
        self.errors: deque[Exception] = deque(maxlen=100)
        self._next = 0
        self._generations = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections: set[_Connection] = set()

    @property
    def url(self) -> str:
        """Where it listens, as `http://127.0.0.1:PORT`."""
        if self._thread is None:
            raise RemandError("ScriptedModel is not running; use it as a context manager")
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return self.url + "/v1"

    @property
    def requests(self) -> list[RecordedRequest]:
        """The recorded chat requests, oldest first: a copy."""
        with self._lock:
            return list(self._requests)

    @property
    def generations(self) -> int:
        """How many requests were answered or failed on, 429s apart."""
        return self._generations

    def reset(self) -> None:
        """Forget every request and start the script again."""
        with self._lock:
            self._requests.clear()
            self.errors.clear()
            self._next = 0
            self._generations = 0

    def start(self) -> ScriptedModel:
        """Listen. Raises `OSError` if the port is taken."""
        started: threading.Event = threading.Event()
        problem: list[OSError] = []
        self._thread = threading.Thread(
            target=self._serve, args=(started, problem), name="scripted-model", daemon=True
        )
        self._thread.start()
        started.wait()
        if problem:
            self._thread.join()
            self._thread = None
            raise problem[0]
        return self

    def close(self) -> None:
        """Stop listening, close every connection and wait for the thread. A second call does nothing."""
        if self._thread is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = self._loop = None

    def __enter__(self) -> ScriptedModel:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, started: threading.Event, problem: list[OSError]) -> None:
        loop = asyncio.new_event_loop()
        try:
            server = loop.run_until_complete(
                loop.create_server(lambda: _Connection(self, loop), "127.0.0.1", self._port, backlog=2048)
            )
        except OSError as error:
            problem.append(error)
            loop.close()
            started.set()
            return
        self._port = server.sockets[0].getsockname()[1]
        self._loop = loop
        started.set()
        loop.run_forever()
        server.close()
        for connection in tuple(self._connections):
            connection.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(server.wait_closed())
        loop.close()

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        if method == "GET" and path == "/v1/models":
            models = [{"id": "scripted", "object": "model", "created": 0, "owned_by": "remand"}]
            return Reply(raw=json.dumps({"object": "list", "data": models}).encode())
        if method != "POST" or path != "/v1/chat/completions":
            return Reply("no such path", status=404)
        try:
            request = RecordedRequest(json.loads(body), headers, time.monotonic())
            kind = (request.body.get("response_format") or {}).get("type", "text")
        except (ValueError, AttributeError, RecursionError):
            return Reply("the body must be a JSON object", status=400)
        if request.body.get("stream"):
            return Reply("streaming is not supported", status=400)
        with self._lock:
            self._requests.append(request)
        if kind not in self._formats:
            return Reply(f"response_format type {kind} is not supported", status=400)
        reply = self._scripted(request)
        if reply.status != 429:
            with self._lock:
                self._generations += 1
        return reply

    def _scripted(self, request: RecordedRequest) -> Reply:
        if callable(self._script):
            try:
                answer = self._script(request)
            except Exception as error:
                self.errors.append(error)
                return Reply("the script raised", status=500)
        else:
            with self._lock:
                answer = self._script[min(self._next, len(self._script) - 1)]
                self._next += 1
        if isinstance(answer, Reply):
            return answer
        return Reply(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


class _Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection. Requests on it are answered one after the other."""

    def __init__(self, model: ScriptedModel, loop: asyncio.AbstractEventLoop) -> None:
        self._model = model
        self._loop = loop
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._model._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._model._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._timer is None:
            self._read()

    def _read(self) -> None:
        """Answer every complete request in the buffer, until one has to wait."""
        while self._transport is not None and self._timer is None and not self._last:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEADERS:
                    self._refuse(431)
                return
            try:
                first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers = {
                    name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)
                }
                length = int(headers.get("content-length", "0"))
            except ValueError:
                self._refuse(400)
                return
            if "transfer-encoding" in headers:
                self._refuse(411)
                return
            if not 0 <= length <= MAX_BODY:
                self._refuse(413)
                return
            if len(self._buffer) < end + 4 + length:
                if headers.pop("expect", "").lower() == "100-continue" and len(self._buffer) == end + 4:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            reply = self._model._answer(method, path.partition("?")[0], headers, body)
            self._last = headers.get("connection", "").lower() == "close"
            if reply.delay > 0:
                self._timer = self._loop.call_later(reply.delay, self._wake, reply)
            else:
                self._write(reply)

    def _wake(self, reply: Reply) -> None:
        self._timer = None
        self._write(reply)
        self._read()

    def _write(self, reply: Reply) -> None:
        if self._transport is None:
            return
        if reply.drop:
            self._transport.abort()
            return
        answer = _render(reply)
        if reply.drip > 0:
            self._drip(memoryview(answer), reply.drip)
            return
        self._transport.write(answer)
        if self._last:
            self._transport.close()

    def _drip(self, rest: memoryview, pace: float) -> None:
        self._timer = None
        if self._transport is None:
            return
        self._transport.write(rest[:1])
        if len(rest) > 1:
            self._timer = self._loop.call_later(pace, self._drip, rest[1:], pace)
        elif self._last:
            self._transport.close()
        else:
            self._loop.call_soon(self._read)

    def _refuse(self, status: int) -> None:
        self._last = True
        self._write(Reply("the request cannot be read", status=status))


def _render(reply: Reply) -> bytes:
    body = reply.body()
    headers = {"date": formatdate(usegmt=True), "content-type": "application/json"}
    headers |= {name.lower(): text for name, text in reply.headers.items()}
    headers["content-length"] = str(len(body))
    head = f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Scripted')}\r\n"
    head += "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return head.encode("latin-1") + b"\r\n" + body


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted or terminated; the base URL is the first line on standard output."""
    parser = argparse.ArgumentParser(prog="python -m remand.testing", description="A scripted model server.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--reply", action="append", help="assistant text; may be repeated, the last repeats")
    parser.add_argument("--status", type=int, default=200)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    replies = [Reply(text, status=options.status, delay=options.delay) for text in options.reply or ["{}"]]
    with ScriptedModel(replies, port=options.port, keep=0) as model:
        sys.stdout.write(model.base_url + "\n")
        sys.stdout.flush()
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
