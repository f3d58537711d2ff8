"""The app of `onejob demo`: five ways to mean "duplicate", one line of policy each."""

from __future__ import annotations

import asyncio

import onejob
from onejob import App, Unique

app = App()


@app.task(unique=Unique.once(by="user"))
async def send_welcome(user: str) -> None:
    await effect("welcome", user)


@app.task(unique=Unique.latest(by="document"))
async def save_document(document: str, version: int) -> None:
    await effect("save", f"{document} v{version}")


@app.task(unique=Unique.once(by="event"))
async def handle_webhook(event: str, body: str) -> None:
    await effect("webhook", event)


@app.task(unique=Unique.debounce(0.5, by="session"))
async def search(session: str, text: str) -> None:
    await effect("search", text)


@app.task(unique=Unique.coalesce(by=()))
async def maintain() -> None:
    await effect("maintain", "everything")


async def effect(kind: str, detail: str) -> None:
    """What a job does to the world, written once per job: its idempotency key says which."""
    await asyncio.sleep(0.05)
    async with app.transaction() as tx:
        await tx.execute(
            "insert into effects (job, kind, detail) values (?, ?, ?)",
            (onejob.current_job().idempotency_key, kind, detail),
        )
