"""The keys of the server that several values decide together, and those that are secret."""

from pathlib import Path
from typing import Any

import pytest

from rtk.config.load import config_from, load_config
from rtk.config.serving import tenant_keys
from rtk.errors import ConfigError
from rtk.plugin.host import installed

NEITHER = "must be a key, a list of keys, or a mapping of tenants to the key or keys of each"
MASKED = "serve.api_keys = '**********' (flag --api-key): "


def keys(text: str) -> list[tuple[str, str]]:
    config = load_config(installed(), {"--api-key": text}, {}).config
    return [(tenant, key.get_secret_value()) for tenant, key in tenant_keys(config.serve.api_keys)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k", [("", "k")]),
        ("12345", [("", "12345")]),
        ("true", [("", "true")]),
        ("a=b==", [("", "a=b==")]),
        ('["k", "l"]', [("", "k"), ("", "l")]),
        ('{"acme": "k", "b.c:d@e-f_g": ["l", "m"]}', [("acme", "k"), ("b.c:d@e-f_g", "l"), ("b.c:d@e-f_g", "m")]),
        ("null", []),
    ],
)
def test_keys_alone_in_lists_and_by_tenant(text: str, expected: list[tuple[str, str]]) -> None:
    assert keys(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("s3cret key", "must be printable ASCII characters without spaces, which a header can carry"),
        ('["fine", "s3cret\\u00e9"]', "must be printable ASCII characters without spaces, which a header can carry"),
        ('{"acme": "s3cret key"}', "must be printable ASCII characters without spaces, which a header can carry"),
        ('{"acme inc": "s3cret"}', "must name tenants by 1 to 64 letters, digits, and characters of . _ : @ -"),
        ('{"": "s3cret"}', ""),
        ('["{s3cret}"]', "must have keys that begin with neither [ nor {; a mapping is JSON, and given alone"),
        ('{"acme":"s3cret"', "must have keys that begin with neither [ nor {; a mapping is JSON, and given alone"),
        ("[]", "must have a key in it; null lets everybody in"),
        ("{}", "must have a key in it; null lets everybody in"),
        ('{"acme": []}', "must have a key in it; null lets everybody in"),
        ('{"s3cret": 5}', NEITHER),
        ('{"acme": {"x": "s3cret"}}', NEITHER),
        ('["s3cret", 5]', NEITHER),
    ],
)  # fmt: skip
def test_what_are_no_keys(text: str, problem: str) -> None:
    if not problem:  # the tenant without a name
        assert keys(text) == [("", "s3cret")]
        return
    with pytest.raises(ConfigError) as refused:
        keys(text)
    assert str(refused.value) == MASKED + problem


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"api_keys": {"acme": "s3cret", "beta": ["other", "s3cret"]}}, "two tenants of api_keys have one key"),
        ({"api_keys": {"acme": "s3cret"}, "admin_api_key": "s3cret"},
         "admin_api_key is one of api_keys too, so that a client would be an administrator"),
        ({"api_keys": {"acme": "s3cret"}, "tenants.limits": {"beta": {"max_requests": 1}}},
         "tenants.limits names beta, and api_keys has no such tenant"),
        ({"restart": True, "in_process": True},
         "restart starts processes again, and in_process has none; leave one of them out"),
        ({"unwell_after_s": 90.5},
         "unwell_after_s = 90.5 is more than dead_after_s = 60, so that /health would never tell of a process before "
         "it is killed; lower the one or raise the other"),
        ({"unwell_after_s": 7, "dead_after_s": 6},
         "unwell_after_s = 7 is more than dead_after_s = 6, so that /health would never tell of a process before "
         "it is killed; lower the one or raise the other"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from({f"serve.{name}": value for name, value in values.items()})
    assert str(refused.value).startswith(f"serve: {problem} (")
    assert "s3cret" not in str(refused.value)


def test_a_process_may_be_dead_as_soon_as_it_is_unwell() -> None:
    assert config_from({"serve.unwell_after_s": 60}).serve.dead_after_s == 60


@pytest.mark.parametrize("key", ["a", "e", "nt", "*", "ap", ".", "(", "\\"])
def test_a_short_key_garbles_no_message(key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from({"serve.api_keys": {"acme": key, "beta": key}})
    assert str(refused.value).startswith("serve: two tenants of api_keys have one key (")


def test_a_short_key_that_is_a_word_of_a_message_is_masked_in_it() -> None:
    with pytest.raises(ConfigError) as refused:
        config_from({"serve.api_keys": {"acme": "two", "beta": "two"}})
    assert str(refused.value).startswith("serve: ********** tenants of api_keys have one key (")


def test_a_key_may_be_given_twice_to_one_tenant() -> None:
    config_from({"serve.api_keys": {"acme": ["k", "k"]}})


def test_limits_may_stand_in_another_file_than_the_keys() -> None:
    config_from({"serve.tenants.limits": {"acme": {"max_requests": 1, "tokens_per_minute": None}}})


def test_a_wrong_limit_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[serve.tenants.limits.acme]\nmax_requests = 0\n[serve.tenants.limits.beta]\nmax_request = 1\n")
    with pytest.raises(ConfigError) as refused:
        load_config(installed(), {}, {}, files=[file])
    assert [problem.partition(": ")[2] for problem in refused.value.problems] == [
        "serve.tenants.limits.acme = 0: must be greater than or equal to 1",
        'serve.tenants.limits.beta = {"max_request": 1}: '
        "the key 'max_request' must be 'max_requests' or 'tokens_per_minute'",
    ]


@pytest.mark.parametrize("host", ["a.example", "*.a.example", "*", "127.0.0.1", "::1", "A.Example."])
def test_hosts(host: str) -> None:
    (found,) = config_from({"serve.allowed_hosts": [host]}).serve.allowed_hosts or ()
    assert found == host.lower().rstrip(".")


@pytest.mark.parametrize("host", ["", "a:80", "http://a", "a/b", "a b", "*a", "[::1]", "a\nb"])
def test_what_are_no_hosts(host: str) -> None:
    with pytest.raises(ConfigError, match="must be a name or address without port"):
        config_from({"serve.allowed_hosts": [host]})


@pytest.mark.parametrize("origin", ["", "a", "https://a/", "https://a/b", "https://a b", "null"])
def test_what_are_no_origins(origin: str) -> None:
    with pytest.raises(ConfigError, match="must be an origin such as"):
        config_from({"serve.cors_origins": [origin]})
