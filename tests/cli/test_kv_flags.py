"""The flags for prefill and decode apart: each engine its own port, one secret, which nothing shows."""

from pathlib import Path

import pytest

from tenure.cli.kv_flags import KVTransferOptions, kv_transfer
from tenure.config import environment_with
from tenure.errors import CallerError

SECRET = "the secret of this cluster"


@pytest.fixture
def key(tmp_path: Path) -> str:
    (tmp_path / "key").write_text(f"\n{SECRET}\n")
    return str(tmp_path / "key")


def test_without_an_address_there_is_none() -> None:
    assert kv_transfer(KVTransferOptions(), 0) is None


def test_engines_listen_at_ports_in_a_row(key: str) -> None:
    options = KVTransferOptions(kv_listen="p.example:9000", kv_secret_file=key, kv_load_failure_policy="fail")
    found = [kv_transfer(options, number) for number in (0, 3)]
    assert [config and config.listen for config in found] == ["p.example:9000", "p.example:9003"]
    assert found[0] is not None
    assert (found[0].secret.value, found[0].recompute, found[0].lease) == (SECRET, False, 30.0)


def test_the_secret_may_come_from_the_environment_and_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_KV_SECRET", SECRET)
    config = kv_transfer(KVTransferOptions(kv_listen="[::1]:9000"), 0)
    assert config is not None
    assert (config.listen, config.secret.value) == ("[::1]:9000", SECRET)
    assert SECRET not in repr(config)
    assert SECRET not in environment_with({}).values()


@pytest.mark.parametrize("listen", ["9000", ":9000", "host", "host:", "host:x", "host:0", "host:65536"])
def test_what_is_no_address(key: str, listen: str) -> None:
    with pytest.raises(CallerError, match="HOST:PORT"):
        kv_transfer(KVTransferOptions(kv_listen=listen, kv_secret_file=key), 0)


def test_a_secret_is_needed_and_not_a_short_one(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("fifteen letters")
    for path, words in ((None, "16 characters"), (tmp_path / "short", "16 characters"), (tmp_path / "none", "No such")):
        with pytest.raises(CallerError, match=words):
            kv_transfer(KVTransferOptions(kv_listen="h:1", kv_secret_file=path and str(path)), 0)
