"""URLs of Valkey stores: what is read out of them, and what is said of those that make no sense."""

from __future__ import annotations

import pytest

from onejob import InvalidOption
from onejob.stores.valkey.address import Address, Tls, parse


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("valkey://localhost:6379", Address((("localhost", 6379),))),
        ("valkey://", Address((("localhost", 6379),))),
        ("valkey://cache", Address((("cache", 6379),))),
        ("valkey://a:1,b:2/3", Address((("a", 1), ("b", 2)), database=3)),
        ("valkey://[::1]:7000", Address((("::1", 7000),))),
        ("valkey://:secret@h", Address((("h", 6379),), password="secret")),
        ("valkey://me:s%40cr%2Ft@h", Address((("h", 6379),), user="me", password="s@cr/t")),
        ("valkey://h?namespace=shop-1.x_Y", Address((("h", 6379),), namespace="shop-1.x_Y")),
        ("valkey://h/0?patience=2.5", Address((("h", 6379),), patience=2.5)),
        ("valkeys://h", Address((("h", 6379),), tls=Tls())),
        (
            "valkeys://h?tls_ca=/ca.pem&tls_cert=c&tls_key=k&tls_verify=never",
            Address((("h", 6379),), tls=Tls("/ca.pem", "c", "k", verifies=False)),
        ),
        ("valkey+cluster://a:1,b:2", Address((("a", 1), ("b", 2)), cluster=True)),
        ("valkeys+cluster://a", Address((("a", 6379),), cluster=True, tls=Tls())),
    ],
)
def test_a_url_is_read(url: str, expected: Address) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h", "starts with valkey:// or valkeys://"),
        ("valkey+tls://h", "starts with valkey://"),
        ("valkey://h:port", "a host or port that is none"),
        ("valkey://h:70000", "a number up to 65535"),
        ("valkey://h:0", "a number up to 65535"),
        ("valkey://h/jobs", "database 'jobs': it is a number"),
        ("valkey://h/-1", "database '-1'"),
        (
            "valkey+cluster://h/1",
            "A cluster has no databases to choose from, but the Valkey store's URL ends in '/1'",
        ),
        ("valkey://h?cluster=true", "write valkey+cluster://HOST:PORT"),
        ("valkey://h?namespace=", "is no name for a namespace: 1 to 40 of"),
        ("valkey://h?namespace=a b", "is no name for a namespace"),
        ("valkey://h?namespace={x}", "is no name for a namespace"),
        (f"valkey://h?namespace={'x' * 41}", "is no name for a namespace"),
        ("valkey://h?patience=soon", "patience='soon' must be seconds"),
        ("valkey://h?patience=4000", "at most 3600"),
        ("valkey://h?patience=0", "more than 0"),
        ("valkey://h?namespce=x", "did you mean namespace=…"),
        ("valkey://h?database=1", "is not known"),
        ("valkey://h?patience=1&patience=2", "patience=… twice"),
        ("valkey://h?tls_ca=x", "nothing is encrypted with that start: write valkeys://"),
        ("valkeys://h?tls_cert=x", "go together"),
        ("valkeys://h?tls_ca=", "an empty tls_ca=: it is FILE"),
        ("valkeys://h?tls_verify=no", "tls_verify='no' is not known: it can be always or never"),
        ("valkey://me@h", "a user ('me') without a password"),
        ("valkey://me:se/cret@h", "percent-encode"),
        ("valkey://me:se?cret@h", "percent-encode"),
        ("valkey://me:se#cret@h", "percent-encode"),
        ("valkey://me:se@cret@h", "percent-encode"),
        ("valkey://me:secret:x@h:a:b", "percent-encode what is special in the password"),
    ],
)
def test_what_makes_no_sense_is_refused_without_a_word_of_the_password(url: str, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse(url)
    assert message in str(caught.value)
    assert "cret" not in str(caught.value)


def test_what_is_shown_of_an_address_has_no_password() -> None:
    single = parse("valkey://me:secret@a:1,[::1]:2/3")
    assert single.place == "a:1,[::1]:2/3"
    assert repr(single) == "Address(a:1,[::1]:2/3)"
    assert parse("valkey+cluster://:secret@a:1,b:2").place == "a:1,b:2 (cluster)"
