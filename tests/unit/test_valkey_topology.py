"""Which server has a key, as a cluster tells it and as it changes."""

from __future__ import annotations

import pytest

from onejob.stores.valkey.address import parse
from onejob.stores.valkey.failures import ServerError
from onejob.stores.valkey.topology import Topology, slot_of

ONE, TWO, THREE = ("10.0.0.1", 7000), ("10.0.0.2", 7000), ("10.0.0.3", 7000)
SLOTS = [
    [0, 8000, [b"10.0.0.1", 7000, b"id"], [b"10.0.0.9", 7000, b"a replica"]],
    [8001, 16383, [b"10.0.0.2", 7000, b"id"]],
]


def cluster() -> Topology:
    topology = Topology(parse("valkey+cluster://h:1,i:2"))
    topology.learn(ONE, SLOTS)
    return topology


@pytest.mark.parametrize(
    ("key", "slot"),
    [("foo", 12182), ("{foo}:data", 12182), (b"{foo}:index", 12182), ("x{foo}{bar}", 12182), ("", 0)],
)
def test_the_slot_of_a_key_is_that_of_its_tag(key: str | bytes, slot: int) -> None:
    assert slot_of(key) == slot


@pytest.mark.parametrize(
    ("key", "slot"), [("{}foo", 9500), ("foo}bar{", 11073), ("{foo", 13308), ("foo{}{bar}", 8363)]
)
def test_what_is_no_tag_counts_with_the_rest_of_the_key(key: str, slot: int) -> None:
    assert slot_of(key) == slot


def test_a_cluster_that_nobody_was_asked_about_is_not_known() -> None:
    topology = Topology(parse("valkey+cluster://h:1,i:2"))
    assert topology.owner("foo") is None
    assert topology.candidates() == [("h", 1), ("i", 2)]


def test_a_slot_is_its_primarys() -> None:
    topology = cluster()
    assert (topology.owner("foo"), topology.owner("")) == (TWO, ONE)
    assert topology.primaries() == (ONE, TWO)


def test_slots_that_nobody_has_are_nobodys() -> None:
    topology = Topology(parse("valkey+cluster://h:1"))
    topology.learn(ONE, SLOTS[:1])
    assert topology.owner("foo") is None
    assert topology.primaries() == (ONE,)


def test_a_node_without_a_name_is_the_one_that_was_asked() -> None:
    topology = Topology(parse("valkey+cluster://h:1"))
    topology.learn(THREE, [[0, 16383, [b"", 7001, b"id"]]])
    assert topology.owner("foo") == ("10.0.0.3", 7001)
    assert topology.moved(THREE, ServerError("MOVED 12182 :7002")) == ("10.0.0.3", 7002)


def test_a_slot_that_has_moved_is_elsewhere_and_the_others_are_not() -> None:
    topology = cluster()
    assert topology.moved(TWO, ServerError("MOVED 12182 10.0.0.3:7000")) == THREE
    assert (topology.owner("foo"), topology.owner("")) == (THREE, ONE)


def test_a_slot_on_its_way_is_elsewhere_for_one_call_only() -> None:
    topology = cluster()
    assert topology.moved(TWO, ServerError("ASK 12182 10.0.0.3:7000")) == THREE
    assert topology.owner("foo") == TWO


def test_after_a_loss_those_are_asked_first_who_were_there() -> None:
    topology = cluster()
    topology.forget()
    assert topology.owner("foo") is None
    assert topology.candidates() == [ONE, TWO, ("h", 1), ("i", 2)]


def test_one_of_several_servers_leads_until_it_is_lost() -> None:
    topology = Topology(parse("valkey://h:1,i:2"))
    assert topology.owner("foo") is None
    topology.leads(("i", 2))
    assert topology.owner("foo") == ("i", 2)
    topology.forget()
    assert topology.owner("foo") is None
