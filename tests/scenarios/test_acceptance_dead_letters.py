"""Dead letters: what failed for good waits elsewhere, to be looked at (ACCEPTANCE.md, G49 to G53)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onejob import App, Fail, InvalidOption, Outcome, Queue, Receipt, Retention, Retry, State, Unique
from onejob.core.job import Job
from onejob.store import Amended
from onejob.testing import FakeClock, adrain

MakeApp = Callable[..., App]


class Mail:
    """An app whose mails cannot be sent while the server is down."""

    def __init__(self, app: App, **settings: object) -> None:
        self.app = app
        self.up = False
        self.sent: list[str] = []

        @app.task(name="send", queue="mail", **settings)
        async def send(to: str, subject: str = "hello") -> str:
            if not self.up:
                raise ConnectionError("no route")
            self.sent.append(to)
            return to

        self.send = send

    async def fail(self, *addresses: str) -> list[Receipt[str]]:
        """Enqueue some mails, and let them fail for good."""
        receipts = [await self.send.aenqueue(to) for to in addresses]
        await adrain(self.app)
        return receipts

    async def state(self, id: str | Receipt[str]) -> State | None:
        """How a job stands; None if it is gone."""
        job = await self.app.ajob(id)
        return None if job is None else job.state


@pytest.fixture
def mail(make_app: MakeApp) -> Mail:
    return Mail(make_app(queues={"mail": Queue(dead_letter="mail-dead")}))


async def only(app: App) -> Job:
    """The one dead letter there is."""
    [letter] = await app.adead()
    return letter


@pytest.mark.accepts("G50")
async def test_a_dead_letter_queue_is_configured_by_name(make_app: MakeApp) -> None:
    app = make_app(dead_letter="lost", queues={"mail": Queue(dead_letter="mail-dead"), "free": Queue()})

    @app.task(name="plain")
    async def plain() -> None:
        raise ValueError

    @app.task(name="own", dead_letter="own-dead")
    async def own() -> None:
        raise ValueError

    for task, found in (
        (plain, "lost"),
        (plain.using(queue="mail"), "mail-dead"),
        (plain.using(queue="free"), "lost"),
        (own, "own-dead"),
        (own.using(queue="mail"), "own-dead"),
        (own.using(dead_letter="other"), "other"),
    ):
        receipt = await task.aenqueue()
        await adrain(app)
        assert [job.queue for job in await app.adead() if job.origin == receipt.id] == [found]
    unburied = await own.using(dead_letter=None).aenqueue()
    await adrain(app)
    assert unburied.id not in {job.origin for job in await app.adead()}


@pytest.mark.accepts("G50")
def test_a_queue_cannot_be_its_own_dead_letter_queue(mail: Mail) -> None:
    with pytest.raises(InvalidOption, match="'mail' cannot be its own dead-letter queue"):
        mail.send.using(dead_letter="mail")
    with pytest.raises(InvalidOption, match="Dead-letter queue name"):
        mail.send.using(dead_letter="no such name")


@pytest.mark.accepts("G49")
async def test_only_the_last_attempt_makes_a_dead_letter(make_app: MakeApp, clock: FakeClock) -> None:
    mail = Mail(make_app(dead_letter="dead"), retry=Retry(3))
    receipt = await mail.send.aenqueue("a")
    for failures in (1, 2, 3):
        assert await mail.app.adead() == []
        await adrain(mail.app)
        job = await mail.app.ajob(receipt)
        assert job is not None
        assert job.failures == failures
        clock.advance(60)
    assert (await only(mail.app)).origin == receipt.id


@pytest.mark.accepts("G51")
async def test_the_original_fails_in_its_queue_and_a_copy_waits_in_the_other(mail: Mail) -> None:
    [receipt] = await mail.fail("a")
    letter = await only(mail.app)
    assert await mail.app.acounts() == {"mail": {State.FAILED: 1}, "mail-dead": {State.WAITING: 1}}
    assert await mail.state(receipt) is State.FAILED
    assert (letter.id == receipt.id, letter.state, letter.queue) == (False, State.WAITING, "mail-dead")
    assert (letter.origin, letter.origin_queue, letter.task) == (receipt.id, "mail", "send")
    assert "no route" in (letter.error or "")


@pytest.mark.accepts("G51")
async def test_a_worker_of_the_dead_letter_queue_runs_it_like_any_other_job(mail: Mail) -> None:
    [receipt] = await mail.fail("a")
    letter = await only(mail.app)
    assert mail.app.worker().settings.queues == ("mail",)
    await adrain(mail.app, queues=["mail-dead"])
    assert (await mail.state(letter.id), len(await mail.app.adead())) == (State.FAILED, 1)
    [other] = await mail.fail("b")
    mail.up = True
    await adrain(mail.app, queues=["mail-dead"])
    assert mail.sent == ["b"]
    assert [job.origin for job in await mail.app.adead()] == [receipt.id]
    assert await mail.state(other) is State.FAILED


@pytest.mark.accepts("G51")
async def test_what_is_revoked_or_expires_is_no_dead_letter(mail: Mail, clock: FakeClock) -> None:
    await mail.app.arevoke(await mail.send.aenqueue("a"))
    await mail.send.using(expires=1).aenqueue("b")
    clock.advance(2)
    await adrain(mail.app)
    assert await mail.app.adead() == []


@pytest.mark.accepts("G52")
async def test_dead_letters_are_listed_from_the_original_queue_by_range(mail: Mail, clock: FakeClock) -> None:
    ids: list[str] = []
    for number in range(5):
        ids += [receipt.id for receipt in await mail.fail(f"{number}")]
        clock.advance(1)
    listed = [job.origin for job in await mail.app.adead("mail")]
    assert listed == ids[::-1]
    assert [job.origin for job in await mail.app.adead("mail", 1, 3)] == [ids[3], ids[2]]
    assert [job.origin for job in await mail.app.adead("mail", 3)] == [ids[1], ids[0]]
    assert await mail.app.adead("mail", 2, 2) == await mail.app.adead("other") == []
    for start, stop in ((-1, 5), (3, 2), (0, "5")):
        with pytest.raises(InvalidOption):
            await mail.app.adead("mail", start, stop)
    with pytest.raises(InvalidOption):
        await mail.app.adead("no such name")


@pytest.mark.accepts("G52")
def test_the_same_in_sync_code(mail: Mail) -> None:
    mail.app.client.call(mail.fail("a"), instead="")
    [letter] = mail.app.dead("mail", 0, 10)
    [group] = mail.app.dead_errors("mail")
    assert (group.count, group.sample) == (1, letter.id)
    assert mail.app.retry(letter.id) is Amended.RETRIED
    assert mail.app.dead() == mail.app.dead_errors() == []


@pytest.mark.accepts("G53")
async def test_dead_letters_are_inspected(mail: Mail, clock: FakeClock) -> None:
    began = clock.now
    [receipt] = await mail.fail("a")
    letter = await only(mail.app)
    arguments = mail.send.codec.decode(letter.payload)
    assert mail.send.codec.mapping(arguments) == {"to": "a", "subject": "hello"}
    assert receipt.id in str(await mail.app.aexplain(letter.id))
    clock.advance(5)
    await mail.fail("b")
    mail.up = True

    @mail.app.task(queue="mail")
    async def give_up() -> None:
        raise Fail("it is too late")

    await give_up.aenqueue()
    await adrain(mail.app)
    common, rare = await mail.app.adead_errors("mail")
    assert (common.error, common.count) == ("ConnectionError: no route", 2)
    assert (rare.error, rare.count) == ("Fail: it is too late", 1)
    assert (common.first, common.last) == (began, began + 5_000)


@pytest.mark.accepts("G53")
@pytest.mark.parametrize("which", ["original", "copy"])
async def test_a_retry_of_either_runs_the_original_again(mail: Mail, which: str) -> None:
    [receipt] = await mail.fail("a")
    letter = await only(mail.app)
    mail.up = True
    assert await mail.app.aretry(receipt if which == "original" else letter.id) is Amended.RETRIED
    assert await mail.app.adead() == []
    assert await mail.state(letter.id) is None
    await adrain(mail.app)
    assert await receipt.aresult(0) == "a"
    assert mail.sent == ["a"]


@pytest.mark.accepts("G53")
async def test_a_retry_respects_the_key(make_app: MakeApp) -> None:
    mail = Mail(make_app(dead_letter="dead"), unique=Unique.in_flight(by="to"))
    [receipt] = await mail.fail("a")
    letter = await only(mail.app)
    again = await mail.send.aenqueue("a")
    assert again.outcome is Outcome.CREATED
    assert await mail.app.aretry(letter.id) is Amended.KEPT
    assert (await only(mail.app)).id == letter.id
    assert await mail.app.aretry(letter.id, force=True) is Amended.RETRIED
    mail.up = True
    await adrain(mail.app)
    assert [await mail.state(one) for one in (receipt, again)] == [State.COMPLETED] * 2


@pytest.mark.accepts("G53")
async def test_a_dead_letter_outlives_its_original_and_brings_it_back(
    make_app: MakeApp, clock: FakeClock
) -> None:
    mail = Mail(make_app(dead_letter="dead", retention=Retention(failed=60)), retry=Retry(2))
    receipt = await mail.send.aenqueue("a")
    await adrain(mail.app, clock=clock)
    clock.advance(3600)
    await mail.app.store.prune(mail.app.retention.stored(), 100)
    assert await mail.state(receipt) is None
    letter = await only(mail.app)
    assert await mail.app.aretry(letter.id) is Amended.RETRIED
    await adrain(mail.app, clock=clock)
    job = await mail.app.ajob(receipt)
    assert job is not None
    assert (job.state, job.queue, job.failures) == (State.FAILED, "mail", 2)
    assert (await only(mail.app)).id == letter.id
    mail.up = True
    await mail.app.aretry(receipt)
    await adrain(mail.app)
    assert (mail.sent, await receipt.aresult(0)) == (["a"], "a")


@pytest.mark.accepts("G53")
async def test_a_dead_letter_is_removed_and_the_original_stays(mail: Mail) -> None:
    [receipt] = await mail.fail("a")
    letter = await only(mail.app)
    assert await mail.app.adelete(letter.id) is Amended.DELETED
    assert await mail.app.adead() == []
    assert await mail.state(receipt) is State.FAILED
    assert await mail.app.adelete(receipt) is Amended.DELETED
    assert await mail.app.acounts() == {}


@pytest.mark.accepts("G53")
async def test_all_that_a_filter_matches_are_retried_at_once(mail: Mail) -> None:
    await mail.fail("a", "b", "c")
    mail.up = True
    assert await mail.app.aretry_many("queue:mail error:route") == {Amended.RETRIED: 3}
    assert await mail.app.adead() == []
    await adrain(mail.app)
    assert sorted(mail.sent) == ["a", "b", "c"]
