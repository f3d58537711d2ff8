// Runs a peer in its own environment: as a producer that prints its rate, or as a worker that notes what it starts.
// A peer's app calls `main`. The store is in $BENCH_URL; a worker leaves its notes in $BENCH_NOTES.

import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

export const url = process.env.BENCH_URL;
const CHUNK = 1_000;
const WAITERS = 100;

/** Seconds on the clock that all processes of a machine share. */
const now = () => Number(process.hrtime.bigint()) / 1e9;

/** When the first job started, and how long each took to get there, if it says when it was sent. */
export class Notes {
  #started = false;
  #waits = [];

  take(payload) {
    const instant = now();
    if (!this.#started) {
      this.#started = true;
      this.#write("started", instant);
    }
    if (payload.sent !== undefined) {
      this.#waits.push(instant - payload.sent);
      if (this.#waits.length === payload.of) this.#write("waits", this.#waits);
    }
  }

  #write(name, found) {
    const file = join(process.env.BENCH_NOTES, name);
    writeFileSync(`${file}.draft`, JSON.stringify(found));
    renameSync(`${file}.draft`, file);
  }
}

/** Do what the command line says. */
export async function main(peer) {
  const [command, ...words] = process.argv.slice(2);
  const numbers = words.map(Number);
  if (command === "work") return peer.work(...numbers);
  if (command === "install") return peer.install();
  await peer.open();
  const measures = { "one-by-one": oneByOne, concurrent, bulk, keys, stamps, load };
  console.log(JSON.stringify((await measures[command](peer, ...numbers)) ?? null));
  await peer.close();
}

async function timed(count, send) {
  const started = now();
  await send();
  return count / (now() - started);
}

async function oneByOne(peer, count) {
  await peer.one(payload(0));
  return timed(count, async () => {
    for (let number = 0; number < count; number++) await peer.one(payload(number));
  });
}

async function concurrent(peer, count) {
  let next = 0;
  const sendOn = async () => {
    while (next < count) await peer.one(payload(next++));
  };
  await peer.one(payload(0));
  return timed(count, () => Promise.all(Array.from({ length: WAITERS }, sendOn)));
}

async function bulk(peer, count) {
  await peer.one(payload(0)); // connects
  const payloads = Array.from({ length: count }, (_, number) => payload(number));
  return inChunks(payloads, (chunk) => peer.many(chunk));
}

async function keys(peer, count, repeats, known) {
  await peer.one(payload(0));
  const distinct = Math.floor(count / repeats);
  const key = (number) => `ord_${String(number % distinct).padStart(10, "0")}`;
  const keyed = Array.from({ length: count }, (_, number) => [key(number), payload(number)]);
  if (known) await inChunks(keyed.slice(0, distinct), (chunk) => peer.offer(chunk));
  return inChunks(keyed, (chunk) => peer.offer(chunk));
}

async function inChunks(calls, send) {
  return timed(calls.length, async () => {
    for (let start = 0; start < calls.length; start += CHUNK) await send(calls.slice(start, start + CHUNK));
  });
}

async function stamps(peer, count) {
  await peer.one(payload(0)); // connects
  for (let number = 0; number < count; number++) {
    await sleep(30 + 30 * Math.random());
    await peer.one({ ...payload(number), sent: now(), of: count });
  }
}

/** Calls at a fixed rate, whether or not those before have been answered. */
async function load(peer, count, rate) {
  await peer.one(payload(0)); // connects
  const began = now();
  const underWay = [];
  for (let number = 0; number < count; number++) {
    const early = began + number / rate - now();
    if (early > 0.001) await sleep(1000 * early);
    underWay.push(peer.one({ ...payload(number), sent: now(), of: count }));
  }
  await Promise.all(underWay);
}

function payload(number) {
  return {
    user_id: 123456,
    kind: "welcome_email",
    ref: "ord_8f3b2c1d90",
    amount: 19.99,
    tags: ["a", "b"],
    number,
  };
}
