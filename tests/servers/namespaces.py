"""Namespaces of the Valkey server or cluster that all tests share: one for each test, gone with it."""

from __future__ import annotations

import itertools
import re
from urllib.parse import parse_qs, urlsplit

import valkey

BATCH = 1_000


class Namespaces:
    """Hands out namespaces that nobody has used."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix
        self._numbers = itertools.count()
        self._clients = [
            valkey.Valkey(port=int(port)) for port in re.findall(r":([0-9]+)", urlsplit(url).netloc)
        ]

    def take(self) -> str:
        """The URL of a store for one test."""
        return f"{self._url}?namespace={self._prefix}{next(self._numbers)}"

    def give_back(self, url: str) -> None:
        """The test is over: away with what it left."""
        [namespace] = parse_qs(urlsplit(url).query)["namespace"]
        for client in self._clients:
            # One walk through all keys; but there are only those of tests that run just now.
            for key in client.scan_iter(f"*{{{namespace}:*", count=BATCH):
                client.unlink(key)  # one by one, as a cluster wants it

    def close(self) -> None:
        for client in self._clients:
            client.close()
