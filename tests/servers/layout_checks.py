"""What must be true of a Valkey store's records while nobody writes: nothing half-written, nothing left behind.

`inspect_layout` holds for any moment at which all messages are delivered; `left_over` once everything has been pruned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from .layout import LATEST, LIVE, Queue, Reader, Record, instant, members_of

LETTERS = b"RDEXWZOQdKGfgaAhvtqsyHSLo"
OF_JOBS = b"RDEXWZOQfvtqsyH"
DESK = ""


def inspect_layout(url: str) -> list[str]:
    """What is wrong on a server, one line each."""
    return problems(Reader(url).read())


def problems(queues: dict[str, Queue]) -> list[str]:
    """The same of what has been read."""
    return problems_inside(queues) + problems_between(queues)


def problems_inside(queues: dict[str, Queue]) -> list[str]:
    """What is wrong with a queue by itself, whatever the others know."""
    return _found(queues, _records, _index, _counts, _keys, _lanes)


def problems_between(queues: dict[str, Queue]) -> list[str]:
    """What queues, and the desk, know of each other and is not so."""
    found = _found(queues, _workers, _following, _waiting, _chains)
    if DESK in queues:
        found += [f"desk: {problem}" for problem in _desk(queues[DESK], queues)]
    return found


def _found(
    queues: dict[str, Queue], *checks: Callable[[Queue, dict[str, Queue]], Iterator[str]]
) -> list[str]:
    return [
        f"{name}: {problem}"
        for name, queue in queues.items()
        if name != DESK
        for check in checks
        for problem in check(queue, queues)
    ]


def left_over(url: str) -> list[str]:
    """What there is besides the queues themselves, once everything has been pruned."""
    found: list[str] = []
    for name, queue in Reader(url).read().items():
        if name == DESK:
            continue
        letters = Counter(member[:1].decode() for member in queue.index if member)
        letters |= Counter(
            {letter: len(some) for letter, some in queue.others.items() if letter not in "miw"}
        )
        records = {"j": queue.heads, "c": queue.cards, "k": queue.keys, "b": queue.blockers, "l": queue.lanes}
        letters |= Counter({letter: len(some) for letter, some in records.items()})
        found += [f"{name}: {count} of {letter} after prune" for letter, count in letters.items() if count]
    return found


def _records(queue: Queue, _: dict[str, Queue]) -> Iterator[str]:
    """Each job is whole, and nothing is there of one that is gone."""
    yield from queue.broken
    for id in queue.heads.keys() ^ queue.cards.keys():
        yield f"job {id.hex()} is half-written"
    for letter in "repa":
        for id in queue.of(letter).keys() - queue.heads.keys():
            yield f"{letter} of job {id.hex()}, which is gone"
    for id in queue.blockers.keys() - queue.heads.keys():
        yield f"b of job {id.hex()}, which is gone"
    for id, head in queue.heads.items():
        if bool(head.has_error) != (id in queue.of("e")):
            yield f"job {id.hex()} and its error disagree"
        if bool(head.changed) != (id in queue.of("a")):
            yield f"job {id.hex()} and the calls that changed it disagree"
        if (head.blockers or 0) != len(queue.blockers.get(id, ())):
            yield f"job {id.hex()} and its blockers disagree"
        if (head.state.decode() in LIVE) == bool(head.ended):
            yield f"job {id.hex()} is {head.state} and ended at {head.ended}"
    for unknown in queue.others.keys() - set("repaniomw"):
        yield f"nobody knows records of {unknown!r}"


def _index(queue: Queue, _: dict[str, Queue]) -> Iterator[str]:
    """The members of jobs are exactly the function of their heads; messages are all delivered."""
    expected = {b""}.union(*(members_of(id, head) for id, head in queue.heads.items()))
    for id, card in queue.cards.items():
        if card.origin and id in queue.heads:
            seq = int(queue.heads[id].seq).to_bytes(6, "big")
            expected.add(b"d" + card.origin_queue + b"\0" + seq + id)
    letters = set(OF_JOBS) | {ord("d")}
    there = {member for member in queue.index if not member or member[0] in letters}
    yield from (f"the index lacks {member!r}" for member in expected - there)
    yield from (f"left in the index: {member!r}" for member in there - expected)
    yield from (
        f"nobody knows index members like {member!r}"
        for member in queue.index
        if member[:1] and member[0] not in LETTERS
    )
    yield from (f"undelivered: {member!r}" for member in queue.members("o"))
    for name in queue.of("o").keys() ^ {member[1:] for member in queue.members("o")}:
        yield f"a message and its place disagree: {name!r}"


def _counts(queue: Queue, _: dict[str, Queue]) -> Iterator[str]:
    """The counters are the counts."""
    there = Counter(head.state for head in queue.heads.values())
    for name, value in queue.of("m").items():
        if name[:1] == b"n" and int(value) != there.pop(name[1:], 0):
            yield f"the count of {name[1:]!r} is {int(value)}"
    yield from (f"{count} of {state!r} are not counted" for state, count in there.items() if count)


def _keys(queue: Queue, _: dict[str, Queue]) -> Iterator[str]:
    """A key has a holder that is not over, or is remembered until a time."""
    expected: set[bytes] = set()
    for digest, record in queue.keys.items():
        holder = queue.heads.get(record.holder)
        if holder is None or (holder.digest, holder.accepted) != (digest, record.since):
            expected.add(b"K" + instant(record.since) + digest)
        if record.forget and record.forget < LATEST:
            expected.add(b"G" + instant(record.forget) + digest)
        if (holder is None or holder.is_over) and not record.forget and not record.follows:
            yield f"key {record.text!r} belongs to nobody"
        made_again = bool(record.forget)  # without its key, which is remembered as that of its former life
        if holder is not None and not holder.is_over and holder.digest != digest and not made_again:
            yield f"key {record.text!r} names a holder that does not know it"
    there = queue.members("K") | queue.members("G")
    yield from (f"a key lacks {member!r}" for member in expected - there)
    yield from (f"left of a key: {member!r}" for member in there - expected)
    yield from (
        f"counts of a key that is gone: {digest!r}" for digest in queue.of("n").keys() - queue.keys.keys()
    )


def _lanes(queue: Queue, _: dict[str, Queue]) -> Iterator[str]:
    """A lane is on record while jobs are in it, or starts count."""
    used = {head.lane for head in queue.heads.values() if head.lane and head.place is not False}
    starts = {member[1:-31] for member in queue.members("S")}
    for lane in used - queue.lanes.keys():
        yield f"lane {lane!r} has jobs and no limits"
    for lane in queue.lanes.keys() - used - starts:
        yield f"lane {lane!r} is left behind"
    for lane in starts - queue.lanes.keys() - {b""}:
        yield f"starts of lane {lane!r}, which is gone"
    expected = {b"L" + instant(plan[4]) + lane for lane, plan in queue.lanes.items() if plan[4]}
    yield from (f"when a lane opens is wrong: {member!r}" for member in expected ^ queue.members("L"))
    for lane in starts & queue.lanes.keys():
        if not queue.lanes[lane][1]:
            yield f"starts of lane {lane!r}, which has no rate"
    for id, head in queue.heads.items():
        if head.ended and head.place is not False:
            yield f"job {id.hex()} has ended and keeps its place in lane {head.lane!r}"
        if not head.ended and head.lane and head.place is False:
            yield f"job {id.hex()} has no place in lane {head.lane!r}"


def _workers(queue: Queue, queues: dict[str, Queue]) -> Iterator[str]:
    """Who is known to live here is known at the desk."""
    known = queues[DESK].of("u").keys() if DESK in queues else set[bytes]()
    yield from (f"worker {worker!r} is left behind" for worker in queue.of("w").keys() - known)


def _following(queue: Queue, queues: dict[str, Queue]) -> Iterator[str]:
    """Who follows waits for somebody who is not over, and who knows of it."""
    for id, head in queue.heads.items():
        if not head.follows:
            continue
        there = _where(head.follows, queues)
        if there is None or queues[there].heads[head.follows].is_over:
            yield f"job {id.hex()} follows nobody"
            continue
        if not queues[there].heads[head.follows].followed:
            yield f"job {id.hex()} follows one that will not look for it"
        if there != queue.name:
            member = b"g" + head.follows + id + queue.name.encode()
            if member not in queues[there].index:
                yield f"job {id.hex()} follows one in {there} that does not know"
    for member in queue.members("g"):
        follower = _in(member[33:], member[17:33], queues)
        if follower is None or follower.follows != member[1:17]:
            yield f"follows no longer: {member!r}"


def _waiting(queue: Queue, queues: dict[str, Queue]) -> Iterator[str]:
    """Who waits for a chain, and who is awaited, know of each other."""
    held: defaultdict[bytes, set[bytes]] = defaultdict(set)
    for member in queue.members("h"):
        held[member[1:17]].add(member[17:33])
    for id, chains in held.items():
        head = queue.heads.get(id)
        if head is None or head.state != b"b":
            yield f"held up, though not blocked: {id.hex()}"
            continue
        for chain in chains:
            there = queue.blockers.get(id, {}).get(chain, "?")
            name = chain + id + queue.name.encode()
            index = queues[there].index if there in queues else set[bytes]()
            if b"a" + name not in index or b"A" + name not in index:
                yield f"job {id.hex()} waits for {chain.hex()}, which does not know"
    for id, head in queue.heads.items():
        if head.state == b"b" and not head.follows and id not in held:
            yield f"job {id.hex()} is blocked by nobody"
    for member in queue.members("a") | queue.members("A"):
        chain, id, name = member[1:17], member[17:33], member[33:]
        waiting, awaited = _in(name, id, queues), queue.heads.get(chain)
        if waiting is None or waiting.ended:
            yield f"waits no longer: {member!r}"
        elif awaited is None or not awaited.awaited:
            yield f"awaited by somebody without knowing: {member!r}"
        elif member[:1] == b"a" and (awaited.is_over or b"h" + id + chain not in queues[name.decode()].index):
            yield f"waits for nothing: {member!r}"


def _chains(queue: Queue, queues: dict[str, Queue]) -> Iterator[str]:
    """A chain's jobs point at each other, over queues, and its first knows whether it is over."""
    for id, head in queue.heads.items():
        if head.next:
            following = _in(head.next_queue, head.next, queues)
            if following is None or (following.chain, following.place_in_chain) != (
                head.chain or id,
                head.place_in_chain + 1,
            ):
                yield f"job {id.hex()} has no next job in {head.next_queue!r}"
        if head.chain:
            root = _in(head.root_queue, head.chain, queues)
            if root is None:
                yield f"job {id.hex()} has lost the first of its chain"
            elif not head.next and bool(root.over) != bool(head.ended):
                yield f"chain {head.chain.hex()} is {root.over!r}, and its last job {head.state!r}"


def _desk(desk: Queue, queues: dict[str, Queue]) -> Iterator[str]:
    """The desk knows all queues; its lists are those of its records."""
    yield from desk.broken
    listed = {member[1:].decode() for member in desk.members("Q")}
    yield from (f"queue {name} is not known" for name in queues.keys() - listed - {DESK})
    workers = {member[1:] for member in desk.members("U")}
    yield from (f"worker {worker!r} is half known" for worker in workers ^ desk.of("u").keys())
    slots = {member[7:] for member in desk.members("N")}
    yield from (f"schedule {slot!r} is gone" for slot in slots - desk.of("s").keys())
    yield from (f"undelivered: {member!r}" for member in desk.members("o"))


def _where(id: bytes, queues: dict[str, Queue]) -> str | None:
    return next((name for name, queue in queues.items() if id in queue.heads), None)


def _in(name: bytes, id: bytes, queues: dict[str, Queue]) -> Record | None:
    queue = queues.get(name.decode())
    return None if queue is None else queue.heads.get(id)
