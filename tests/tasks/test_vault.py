from __future__ import annotations

import base64
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from remand_tasks.state.vault import BadKeys, KeyRing, Vault, VaultError, record_key, vault_key

MARKER = b"PLAINTEXT-MARKER"


def ring(*names: str) -> KeyRing:
    return KeyRing.parse(",".join(KeyRing.generate(name) for name in names))


def code_of(keys: KeyRing, reference: str, sealed: bytes) -> str:
    with pytest.raises(VaultError) as failed:
        keys.open(reference, sealed)
    return str(failed.value.code)


@given(st.binary(max_size=200), st.text(max_size=30).filter(lambda text: "\ud800" not in text))
def test_what_was_sealed_opens_under_its_reference(data: bytes, reference: str) -> None:
    keys = ring("k1")
    assert keys.open(reference, keys.seal(reference, data)) == data


def test_sealed_entry_is_version_key_id_nonce_ciphertext() -> None:
    sealed = ring("k1").seal("r/1/a", b"1234")
    assert sealed[:4] == b"\x01\x02k1"
    assert len(sealed) == 2 + 2 + 12 + 4 + 16


def test_the_same_text_never_seals_to_the_same_bytes() -> None:
    keys = ring("k1")
    assert len({keys.seal("r/1/a", b"x") for _ in range(50)}) == 50


@pytest.mark.parametrize("moved_to", ["r/1/b", "r/2/a", "s/1/a", ""])
def test_moved_ciphertext_does_not_open(moved_to: str) -> None:
    keys = ring("k1")
    assert code_of(keys, moved_to, keys.seal("r/1/a", MARKER)) == "tampered"


def test_every_changed_bit_is_noticed() -> None:
    keys = ring("k1")
    sealed = keys.seal("r/1/a", b"abc")
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]
        assert code_of(keys, "r/1/a", changed) in {"tampered", "unknown_key", "malformed"}


@pytest.mark.parametrize("length", range(33))
def test_cut_entry_is_malformed(length: int) -> None:
    keys = ring("k1")
    assert code_of(keys, "r/1/a", keys.seal("r/1/a", b"")[:-1][:length]) == "malformed"


def test_after_rotation_the_new_key_seals_and_the_old_still_opens() -> None:
    first = KeyRing.generate("old")
    before = KeyRing.parse(first)
    sealed = before.seal("r/1/a", b"x")
    rotated = KeyRing.parse(f"{KeyRing.generate('new')}, {first}")
    assert rotated.primary == "new"
    assert rotated.open("r/1/a", sealed) == b"x"
    assert code_of(before, "r/1/a", rotated.seal("r/1/a", b"y")) == "unknown_key"


def test_ring_without_the_key_says_so() -> None:
    sealed = ring("old").seal("r/1/a", b"x")
    assert code_of(ring("new"), "r/1/a", sealed) == "unknown_key"


def test_other_key_under_the_same_id_does_not_open() -> None:
    assert code_of(ring("k1"), "r/1/a", ring("k1").seal("r/1/a", b"x")) == "tampered"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("k1", "form"),
        ("k1:", "form"),
        ("k1:c2hvcnQ", "form"),
        ("k1:" + "A" * 44, "form"),
        ("k 1:" + "A" * 43, "form"),
        ("k1:" + "A" * 42 + "+", "form"),
        ("k1:" + "A" * 43 + ",", "form"),
        ("k1:" + "A" * 43 + ",k1:" + "B" * 43, "duplicate_id"),
    ],
)
def test_wrong_key_text_is_refused_without_quoting_it(text: str, code: str) -> None:
    with pytest.raises(BadKeys) as refused:
        KeyRing.parse(text)
    assert refused.value.code == code
    again = pickle.loads(pickle.dumps(refused.value))
    assert again.code == code
    for shown in (f"{refused.value!s}{refused.value!r}", f"{again!s}{again!r}"):
        assert "AAAA" not in shown
        assert "c2hvcnQ" not in shown


def test_padded_key_text_is_read_as_well() -> None:
    material = base64.urlsafe_b64encode(bytes(32)).decode()
    assert material.endswith("=")
    sealed = KeyRing.parse(f"k1:{material}").seal("r", b"x")
    assert KeyRing.parse(f"k1:{material.rstrip('=')}").open("r", sealed) == b"x"


def test_representation_shows_key_ids_only() -> None:
    text = f"{KeyRing.generate('new')},{KeyRing.generate('old')}"
    assert repr(KeyRing.parse(text)) == "KeyRing(new, old)"


def test_key_ring_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="key ring"):
        pickle.dumps(ring("k1"))


def test_vault_error_says_its_code_only_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(VaultError("tampered")))
    assert (error.code, str(error)) == ("tampered", "a vault entry cannot be opened: tampered")


def test_one_ring_serves_many_threads() -> None:
    keys = ring("k1")

    def there_and_back(i: int) -> bool:
        data = bytes((i % 256,)) * 500
        return keys.open(f"r/{i}", keys.seal(f"r/{i}", data)) == data

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, range(2000)))


def test_item_keys_share_their_hash_tag() -> None:
    assert vault_key("r1", 7) == "remand:vault:{r1/7}"
    assert record_key("r1", 7) == "remand:attempt:{r1/7}"


def put(client: redis.Redis, vault: Vault, run: str, seq: int, name: str, data: bytes) -> None:
    client.hset(vault_key(run, seq), name, vault.seal(run, seq, name, data))


def test_reading_returns_what_exists_and_leaves_out_the_rest(redis_client: redis.Redis) -> None:
    vault = Vault(redis_client, ring("k1"))
    put(redis_client, vault, "r", 1, "a", b"A")
    put(redis_client, vault, "r", 1, "b", b"B")
    assert vault.read("r", 1, ["b", "missing", "a"]) == {"b": b"B", "a": b"A"}
    assert vault.read("r", 1, []) == {}
    assert vault.read("r", 2, ["a"]) == {}


@pytest.mark.parametrize(("run", "seq", "name"), [("r", 1, "b"), ("r", 2, "a"), ("s", 1, "a")])
def test_entry_moved_inside_redis_is_refused(
    redis_client: redis.Redis, run: str, seq: int, name: str
) -> None:
    vault = Vault(redis_client, ring("k1"))
    redis_client.hset(vault_key(run, seq), name, vault.seal("r", 1, "a", b"A"))
    with pytest.raises(VaultError) as failed:
        vault.read(run, seq, [name])
    assert failed.value.code == "tampered"


def test_raw_bytes_of_the_vault_hold_no_plaintext(redis_client: redis.Redis) -> None:
    vault = Vault(redis_client, ring("k1"))
    put(redis_client, vault, "r", 1, "response", MARKER * 10)
    raw = redis_client.dump(vault_key("r", 1)) + b"".join(redis_client.hvals(vault_key("r", 1)))
    assert MARKER not in raw
    assert b"response" in raw  # the dump is not compressed, so a marker would be seen


def test_delete_removes_one_items_entries(redis_client: redis.Redis) -> None:
    vault = Vault(redis_client, ring("k1"))
    put(redis_client, vault, "r", 1, "a", b"A")
    put(redis_client, vault, "r", 2, "a", b"A")
    vault.delete("r", 1)
    assert redis_client.keys() == [vault_key("r", 2).encode()]


def test_sweep_removes_the_runs_keys_and_no_others(redis_client: redis.Redis) -> None:
    vault = Vault(redis_client, ring("k1"))
    for seq in range(1200):
        redis_client.hset(vault_key("r1", seq), "a", "x")
    redis_client.hset(record_key("r1", 1), "epoch", "1")
    others = {vault_key("r10", 1), record_key("r10", 1), vault_key("r", 1), "remand:other:{r1/1}", "{r1/1}"}
    for key in others:
        redis_client.hset(key, "a", "x")
    assert vault.sweep("r1") == 1201
    assert {key.decode() for key in redis_client.scan_iter()} == others
    assert vault.sweep("r1") == 0


@pytest.mark.parametrize("run", ["*", "", "r/1", "[r]", "r?"])
def test_sweep_refuses_what_could_match_other_runs(redis_client: redis.Redis, run: str) -> None:
    with pytest.raises(ValueError, match="not the name of a run"):
        Vault(redis_client, ring("k1")).sweep(run)


def test_redis_that_is_gone_is_an_error_and_not_a_missing_entry(redis_client: redis.Redis) -> None:
    away = redis.Redis(unix_socket_path="/nonexistent/socket", retry=None)
    with pytest.raises(redis.ConnectionError):
        Vault(away, ring("k1")).read("r", 1, ["a"])
