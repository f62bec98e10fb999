"""The flags for access and limits: each is read, each reaches the process that has to hold to it."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure.cli.http_flags import AccessOptions, LimitOptions
from tenure.cli.serve import ServeOptions, serve_config
from tenure.config import ApiConfig, CorsConfig, KeyRing
from tenure.errors import CallerError
from tests.certificates import self_signed
from tests.cli.command import Command
from tests.cli.test_serve_config import options

MIB = 1024 * 1024


@pytest.fixture
def model(tmp_path: Path) -> str:
    """What passes for a model as long as nobody reads it."""
    path = tmp_path / "tiny-model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def configured(model: str, **given: Any) -> ApiConfig:
    return serve_config([model], ServeOptions(access=AccessOptions(**given))).api


FLAGS: dict[str, tuple[tuple[str, ...], Any]] = {
    "api_key": (("--api-key", "k1", "--api-key", "k2"), ["k1", "k2"]),
    "api_key_file": (("--api-key-file", "{keys}"), "{keys}"),
    "allowed_origins": (
        ("--allowed-origins", "https://a.example", "https://b.example"),
        ["https://a.example", "https://b.example"],
    ),
    "allowed_methods": (("--allowed-methods", "GET"), ["GET"]),
    "allowed_headers": (("--allowed-headers", "x-one"), ["x-one"]),
    "allow_credentials": (("--allow-credentials",), True),
    "ssl_certfile": (("--ssl-certfile", "{certificate}", "--ssl-keyfile", "{key}"), "{certificate}"),
    "root_path": (("--root-path", "/llm"), "/llm"),
    "max_body_size": (("--max-body-size", "0.5"), 0.5),
    "max_open_body_size": (("--max-open-body-size", "64"), 64.0),
    "max_body_depth": (("--max-json-depth", "5"), 5),
    "max_body_items": (("--max-json-items", "7"), 7),
    "max_header_bytes": (("--max-header-size", "2048"), 2048),
    "max_header_count": (("--max-header-count", "20"), 20),
    "header_timeout": (("--header-timeout", "2.5"), 2.5),
    "body_timeout": (("--body-timeout", "3"), 3.0),
    "stall_timeout": (("--stall-timeout", "9"), 9.0),
    "max_connections": (("--max-connections", "77"), 77),
    "keep_alive_timeout": (("--timeout-keep-alive", "2.5"), 2.5),
    "keep_alive_interval": (("--sse-keep-alive-interval", "2.5"), 2.5),
}
TOGETHER = {"ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"}
"""What means nothing without a certificate."""


def test_there_is_no_other_flag() -> None:
    assert {field.name for kind in (AccessOptions, LimitOptions) for field in fields(kind)} == set(FLAGS) | TOGETHER


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_is_read_and_changes_what_is_run(name: str, model: str, tmp_path: Path) -> None:
    made = self_signed(tmp_path, "server") if name.startswith("ssl") else None
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    places = {"{keys}": str(keys)}
    if made is not None:
        places |= {"{certificate}": str(made.certificate), "{key}": str(made.key)}
    arguments, value = FLAGS[name]
    read = options(model, *(places.get(argument, argument) for argument in arguments))
    assert getattr(read.access, name, getattr(read.limits, name, None)) == (
        places.get(value, value) if isinstance(value, str) else value
    )
    config = serve_config([model], read)
    assert config != serve_config([model], ServeOptions())
    assert msgspec.json.decode(msgspec.json.encode(config.api), type=ApiConfig) == config.api


def test_vllms_names_for_the_limits_of_heads(model: str) -> None:
    read = options(model, "--h11-max-incomplete-event-size", "4096", "--h11-max-header-count", "9")
    assert (read.limits.max_header_bytes, read.limits.max_header_count) == (4096, 9)


def test_limits_in_the_units_of_the_flags(model: str) -> None:
    given = LimitOptions(max_body_size=1.5, max_open_body_size=8, body_timeout=2.0, header_timeout=1.0)
    limits = serve_config([model], ServeOptions(limits=given)).api.limits
    assert (limits.max_body_bytes, limits.max_open_body_bytes) == (MIB * 3 // 2, 8 * MIB)
    assert (limits.body_timeout, limits.header_timeout) == (2.0, 1.0)


# Keys


def test_keys_come_from_the_environment_unless_given(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_API_KEY", "from, environment")
    assert configured(model).api_keys == KeyRing(("from", "environment"))
    assert configured(model, api_key=[" given "]).api_keys == KeyRing(("given",))


def test_keys_from_a_file_come_on_top_of_those_of_the_flag(model: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the team\n\n  first  \r\nsecond # not a comment\n#third\nkľúč\n", encoding="utf-8")
    assert configured(model, api_key_file=str(path)).api_keys == KeyRing(("first", "second # not a comment", "kľúč"))
    both = configured(model, api_key=["flag"], api_key_file=str(path)).api_keys.keys
    assert both[:2] == ("flag", "first")


def test_an_empty_key_opens_no_server(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is when a variable was not set; neither is the server then open to those who send an empty key."""
    monkeypatch.delenv("TENURE_API_KEY", raising=False)
    with pytest.raises(CallerError, match="--api-key was given without a key"):
        configured(model, api_key=[""])


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"", "holds no key"), (b"# only\n\n", "holds no key"), (b"\xff\xfe", "no text")],
)
def test_a_file_without_keys_opens_no_server(
    tenure: Command, model: str, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    ended = tenure("serve", model, "--api-key-file", str(path))
    assert (ended.code, ended.output) == (1, "")
    [line] = ended.errors.splitlines()
    assert line.startswith(f"tenure: --api-key-file {path}")
    assert words in line


def test_keys_are_not_shown_with_a_configuration(model: str) -> None:
    given = ServeOptions(access=AccessOptions(api_key=["hush-hush"]))
    config = serve_config([model], given)
    assert config.api.api_keys.keys == ("hush-hush",)
    for value in (given, given.access, config, config.api, config.api.api_keys):
        assert "hush" not in repr(value) + str(value)


# CORS, TLS, prefix


def test_origins_may_be_given_as_vllm_takes_them(model: str) -> None:
    assert configured(model).cors == CorsConfig()
    given = configured(model, allowed_origins=['["https://a", "https://b"]', "https://c"], allowed_methods=['["GET"]'])
    assert given.cors == CorsConfig(origins=("https://a", "https://b", "https://c"), methods=("GET",))
    with pytest.raises(CallerError, match=r"--allowed-origins .* no JSON list"):
        configured(model, allowed_origins=['["https://a"'])


def test_a_certificate_that_works(model: str, tmp_path: Path) -> None:
    made, others = self_signed(tmp_path, "server"), self_signed(tmp_path, "clients")
    assert configured(model).tls is None
    tls = configured(
        model,
        ssl_certfile=str(made.certificate),
        ssl_keyfile=str(made.key),
        ssl_ca_certs=str(others.certificate),
        ssl_cert_reqs=2,
        ssl_ciphers="ECDHE+AESGCM",
    ).tls
    assert tls is not None
    assert (tls.certfile, tls.keyfile, tls.cert_reqs) == (str(made.certificate), str(made.key), 2)
    assert (tls.ca_certs, tls.ciphers) == (str(others.certificate), "ECDHE+AESGCM")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ssl_keyfile": "{key}"}, "need --ssl-certfile"),
        ({"ssl_cert_reqs": 1}, "need --ssl-certfile"),
        ({"ssl_certfile": "/no/such.pem"}, "--ssl-certfile /no/such.pem: No such file"),
        ({"ssl_certfile": "{certificate}"}, "--ssl-certfile .*PEM"),
        ({"ssl_certfile": "{certificate}", "ssl_keyfile": "{other}"}, "--ssl-keyfile .*(mismatch|MISMATCH)"),
        ({"ssl_certfile": "{locked}", "ssl_keyfile": "{locked_key}"}, "the key is encrypted"),
        ({"ssl_certfile": "{certificate}", "ssl_keyfile": "{key}", "ssl_ciphers": "NONE"}, "--ssl-ciphers NONE"),
        ({"ssl_certfile": "{certificate}", "ssl_keyfile": "{key}", "ssl_ca_certs": "{key}"}, "--ssl-ca-certs"),
        ({"ssl_certfile": "{certificate}", "ssl_keyfile": "{key}", "ssl_cert_reqs": 2}, "needs --ssl-ca-certs"),
    ],
)
def test_tls_that_cannot_work_is_refused_before_anything_starts(
    model: str, tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    made, other = self_signed(tmp_path, "server"), self_signed(tmp_path, "other")
    locked = self_signed(tmp_path, "locked", password="secret")
    places = {"{certificate}": made.certificate, "{key}": made.key, "{other}": other.key}
    places |= {"{locked}": locked.certificate, "{locked_key}": locked.key}
    filled = {name: str(places.get(value, value)) if isinstance(value, str) else value for name, value in given.items()}
    with pytest.raises(CallerError, match=words):
        configured(model, **filled)


@pytest.mark.parametrize(("given", "path"), [("", ""), ("/", ""), ("/a", "/a"), ("/a/b-c/", "/a/b-c")])
def test_prefixes(model: str, given: str, path: str) -> None:
    assert configured(model, root_path=given).settings.root_path == path


@pytest.mark.parametrize("given", ["a", "http://x/a", "/a b", "/a?b", "/a//b", "/é", "/a/{b}"])
def test_prefixes_that_are_none(model: str, given: str) -> None:
    with pytest.raises(CallerError, match="--root-path"):
        configured(model, root_path=given)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *[("--max-body-size", value) for value in ("0", "-1", "nan", "inf", "big")],
        *[("--max-json-depth", value) for value in ("0", "257", "1.5")],
        *[("--max-json-items", value) for value in ("0", "many")],
        *[("--body-timeout", value) for value in ("0", "-1", "nan")],
        *[("--max-connections", value) for value in ("0", "x")],
        ("--max-header-size", "1023"),
        ("--ssl-cert-reqs", "3"),
    ],
)
def test_values_that_no_flag_takes(model: str, flag: str, value: str) -> None:
    with pytest.raises(Exception, match=flag):
        options(model, flag, value)
