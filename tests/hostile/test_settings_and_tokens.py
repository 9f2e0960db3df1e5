"""Settings, vault keys and tokens out of foreign text: used, or refused without a quotation; never a crash."""

# ruff: noqa: PT017 - a property holds for what is taken and for what is refused alike

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remand.errors import RemandError
from remand_tasks.state.vault import BadKeys, KeyRing, VaultError
from remand_tasks.token import BadToken, Token
from remand_workers.settings import Settings, SettingsError, variable, without_password

MARKER = "Zqsetting7744x"
SHOWN = {"flower_address", "model", "intake_stream", "intake_group", "intake_queue"}
"""Free texts that are no secrets: a representation has them."""
NAMES = [name for name in Settings.model_fields if name not in ("home",)]

words = (
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
    | st.sampled_from(
        ["-1", "0", "1e999", "nan", "inf", "9" * 400, "true", "{}", "[", "redis://", "amqp://", "://@:?"]
    )
    | st.from_regex(r"[a-z+]{1,8}://[^\0]{0,30}", fullmatch=True)
)


@settings(max_examples=300, deadline=None)
@given(given_values=st.dictionaries(st.sampled_from(NAMES), words, max_size=5))
@example(given_values={"broker_url": "redis://[::1", "vault_url": "redis://:" + MARKER + "@["})
@example(given_values={"window": MARKER, "claim_lease": MARKER, "log_level": MARKER, "flower_auth": MARKER})
@example(given_values={"broker_url": "amqp://a:" + MARKER + "@h/v", "metrics_port": MARKER})
def test_settings_are_used_or_refused_without_a_quotation(given_values: dict[str, str]) -> None:
    marked = {name: value if MARKER in value else value + MARKER for name, value in given_values.items()}
    for values in (given_values, marked):
        environment = {variable(name): value for name, value in values.items()}
        with patch.dict(os.environ, environment, clear=True):
            try:
                made = Settings(_env_file=None)
            except SettingsError as error:
                assert MARKER not in f"{error} {error!r}"
                continue
        if not values.keys() & SHOWN:
            assert MARKER not in repr(made)
        made.shown(environment)
        made.environment()
        try:
            made.require_services()
        except SettingsError as error:
            assert MARKER not in str(error)


@given(
    password=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=4, max_size=30),
    scheme=st.sampled_from(["redis", "rediss", "amqp", "postgresql+psycopg"]),
    user=st.sampled_from(["", "anna"]),
)
def test_a_password_in_a_url_is_never_shown(password: str, scheme: str, user: str) -> None:
    shown = without_password(f"{scheme}://{user}:{MARKER}{password}{MARKER}@server.example:6379/0")
    assert MARKER not in shown


@given(
    text=st.text()
    | st.binary()
    | st.integers()
    | st.lists(st.text())
    | st.from_regex(r"[\w-]{1,70}(/\d{1,20}){3,6}")
)
@example(text="run/0/0/1/1\n")
@example(text="run/٣/0/1/1")
@example(text="run/00/0/1/1")
@example(text="run/0/0/1/" + "9" * 16)
@example(text="*/0/0/1/1")
def test_a_token_is_exact_or_refused(text: object) -> None:
    try:
        token = Token.parse(text)
    except BadToken as error:
        assert str(error) in {
            "not a token: wrong type",
            "not a token: wrong length",
            "not a token: wrong form",
        }
    else:
        assert str(token) == text
        assert isinstance(text, str)
        assert text.isascii()


@given(text=st.text() | st.from_regex(r"[a-z]{1,4}:[\w-]{40,46}=?(,[a-z]:[\w-]{43})?", fullmatch=True))
def test_vault_keys_are_used_or_refused_without_a_quotation(text: str) -> None:
    try:
        KeyRing.parse(text)
    except BadKeys as error:
        assert (
            str(error) == f"vault keys are wrong ({error.code}): expected id:base64url-of-32-bytes[,id:...]"
        )


RING = KeyRing.parse("k1:" + "A" * 43)


@given(sealed=st.binary(max_size=100), reference=st.text(max_size=20))
def test_a_foreign_vault_entry_is_refused(sealed: bytes, reference: str) -> None:
    with pytest.raises(VaultError) as caught:
        RING.open(reference, sealed)
    assert isinstance(caught.value, RemandError)


@given(data=st.binary(max_size=100), place=st.integers(0), bit=st.integers(0, 7))
def test_a_changed_vault_entry_is_refused(data: bytes, place: int, bit: int) -> None:
    sealed = bytearray(RING.seal("run/0/cand.1", data))
    sealed[place % len(sealed)] ^= 1 << bit
    with pytest.raises(VaultError):
        RING.open("run/0/cand.1", bytes(sealed))
