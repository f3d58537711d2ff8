"""The app of `onejob demo`: five ways to mean "duplicate", one line of policy each; and work in parts, added up.

It also runs by itself: save it as demo_app.py, then `python demo_app.py`, or `onejob worker demo_app.py:app`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator

import onejob
from onejob import App, Unique

app = App()  # $ONEJOB_URL, or a file in this folder


@app.task(queue="clicks", unique=Unique.once(by="user"))
async def send_welcome(user: str) -> None:
    await effect("click", user, 0.05)


@app.task(queue="edits", unique=Unique.latest(by="document"))
async def save_document(document: str, version: int) -> None:
    await effect("edit", f"{document} v{version}", 0.5)


@app.task(queue="webhooks", unique=Unique.once(by="event"))
async def handle_webhook(event: str, delivery: int) -> None:
    await effect("webhook", event, 0.1)


@app.task(queue="searches", unique=Unique.debounce(0.6, by="session"))
async def search(session: str, text: str) -> None:
    await effect("search", f"{session} {text}", 0.1)


@app.task(queue="maintenance", unique=Unique.in_flight(by="night"))
async def maintain(night: str, seconds: float) -> None:
    await effect("maintenance", night, seconds)


@app.task(queue="report", retry=5)
async def split(parts: int) -> None:
    job = onejob.current_job()
    async with job.complete():  # all parts, and what waits for them: one commit
        made = await app.aenqueue_many([count.job(part) for part in range(parts)])
        job.continue_with(add_up.using(blockers=made))


@app.task(queue="report")
async def count(part: int) -> int:
    await effect("part", str(part), 0.3)
    return part


@app.task(queue="report")
async def add_up() -> int:
    total = sum(part.output for part in onejob.current_job().blockers)
    await effect("total", str(total), 0.1)
    return total


async def effect(kind: str, detail: str, seconds: float) -> None:
    """Work for a while, then act once: the job's idempotency key is the same in every attempt."""
    await asyncio.sleep(seconds)
    async with app.transaction() as tx:
        await tx.execute(
            "insert into effects (job, kind, detail) values (?, ?, ?) on conflict (job) do nothing",
            (onejob.current_job().idempotency_key, kind, detail),
        )


@app.lifespan
async def tables() -> AsyncGenerator[None, None]:
    async with app.transaction() as tx:
        await tx.execute("create table if not exists effects (job text primary key, kind text, detail text)")
        await tx.execute("create table if not exists starts (job text, attempt integer, pid integer)")
    yield


@app.on_start
async def note_start(job: onejob.CurrentJob) -> None:
    async with app.transaction() as tx:
        await tx.execute("insert into starts values (?, ?, ?)", (job.id, job.attempt, os.getpid()))


async def main() -> None:
    async with app, app.worker():
        receipts = [await send_welcome.aenqueue("ada") for _ in range(3)]
        receipts += [await save_document.aenqueue("novel", version) for version in (1, 2, 3)]
        for receipt in receipts:
            print(receipt)
        await asyncio.gather(*(receipt.aresult(timeout=10) for receipt in receipts if receipt.new_or_none()))
        report = await split.aenqueue(parts=10)
        print(f"the parts add up to {await report.aresult(timeout=10)}")


if __name__ == "__main__":
    asyncio.run(main())
