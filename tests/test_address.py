"""Addresses of servers: whose they are, and what of them is never printed."""

import io

import pytest

from abut.address import (
    Address,
    RedirectError,
    checked_headers,
    end_without_secrets,
    origin,
    redirected,
    said,
    shown,
)

SECRET = "s3cr3t"


def test_user_and_password_become_a_header() -> None:
    address = Address.of(f"https://me:{SECRET}%40@host:8443/base/")
    assert address.url == "https://host:8443/base"
    assert address.headers == {"Authorization": "Basic bWU6czNjcjN0QA=="}
    assert repr(address) == "Address(url='https://host:8443/base')"
    assert Address.of("http://[::1]:8000") == Address("http://[::1]:8000")


@pytest.mark.parametrize(
    "text",
    [
        f"ftp://me:{SECRET}@host",
        f"http://me:{SECRET}@host:port",
        f"http://me:1{SECRET}/@host",
        f"http://me:12/{SECRET}@host?",
        f"http://me:12#{SECRET}@host",
        f"http://me:{SECRET}\n@host",
        f"http://me:{SECRET}@[host",
        f"me:{SECRET}@host:80",
        f"http://me:{SECRET}@",
        "http://host:99999",
        "",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ValueError, match="an address starts with http") as raised:
        Address.of(text)
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(raised.value.__cause__)
    assert raised.value.__cause__ is None


def test_errors_of_others_are_said_without_passwords() -> None:
    error = OSError(f"http://me:{SECRET}@proxy:1 isn't a valid proxy")
    assert said(error) == "OSError: http://…@proxy:1 isn't a valid proxy"
    assert shown(f"http://me:{SECRET}@b") == "http://…@b"
    assert shown("http://b/c") == "http://b/c"


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin("wss://Host:443/a") == origin("https://host") == "https://host"
    assert origin("ws://me:x@[::1]:80/a?b") == "http://[::1]"
    assert origin("http://host:443") != origin("https://host")


@pytest.mark.parametrize(
    ("location", "to"),
    [
        ("/b/", "ws://me@host:1/b/"),
        ("b?c=d", "ws://me@host:1/b?c=d"),
        ("http://host:1/b", "ws://me@host:1/b"),
        ("ws://other@host:1/b", "ws://me@host:1/b"),
    ],
)
def test_a_redirect_within_an_origin_is_followed(location: str, to: str) -> None:
    assert redirected("ws://me@host:1/a", location) == to


@pytest.mark.parametrize(
    "location",
    ["https://host:1/a", "//host/a", "//other:1", "http://host:2", f"http://me:{SECRET}@other/"],
)
def test_a_redirect_to_another_origin_is_refused(location: str) -> None:
    with pytest.raises(RedirectError) as raised:
        redirected(f"http://me:{SECRET}@host:1/a", location)
    there = origin(f"http:{location}" if location.startswith("//") else location)
    assert str(raised.value) == (
        f"http://host:1 redirects to another origin, {there}; abut does not follow, so that "
        f"your headers stay with http://host:1\nhint: if the server has moved, use {there} as "
        "its address"
    )


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://a:b", "//\x1b[2J"])
def test_a_redirect_to_no_address_is_refused(location: str) -> None:
    with pytest.raises(
        RedirectError, match=r"^http://host redirects to something that is not an address$"
    ):
        redirected("http://host", location)


@pytest.mark.parametrize("value", [f"{SECRET}\n", f"{SECRET}\r\nX: y", f"{SECRET}…", f"\0{SECRET}"])
def test_a_header_that_cannot_be_sent_is_named_without_its_value(value: str) -> None:
    with pytest.raises(ValueError, match="the header 'Authorization' cannot be sent") as raised:
        checked_headers("OpenEnv", {"Authorization": value})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("cut", range(1, 40))
@pytest.mark.parametrize(
    "text", ["abcdefghij", "abcdefghijabcdefghijabcdefghij", "x abcdefghij\ny"]
)
def test_the_end_of_a_log_begins_with_no_part_of_a_secret(text: str, cut: int) -> None:
    environ = {"KEY": "abcdefghij", "LONG": "abcdefghijkl", "SHORT": "y"}
    end = end_without_secrets(io.BytesIO(text.encode()), cut, environ)
    assert not set("abcdefghij") & set(end)
    if cut >= len(text):
        assert end == text.replace("abcdefghij", "<KEY>")
