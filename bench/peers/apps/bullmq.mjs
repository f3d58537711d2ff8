// BullMQ with what serves it best: finished jobs are removed at once, and one connection sends what is awaited together.

import { Queue, Worker } from "bullmq";
import { Notes, main, url } from "./measured.mjs";

const { hostname: host, port, pathname } = new URL(url.replace(/^valkey:/, "http:"));
const connection = { host, port: Number(port), db: Number(pathname.slice(1)) };
const QUEUE = "nothing";
let queue;

await main({
  async open() {
    queue = new Queue(QUEUE, { connection, defaultJobOptions: { removeOnComplete: true } });
    await queue.waitUntilReady();
  },
  close: () => queue.close(),
  install: async () => {},
  one: (data) => queue.add(QUEUE, data),
  many: (payloads) => queue.addBulk(payloads.map((data) => ({ name: QUEUE, data }))),
  offer: (keyed) =>
    queue.addBulk(keyed.map(([id, data]) => ({ name: QUEUE, data, opts: { deduplication: { id } } }))),
  async work(concurrency) {
    const notes = new Notes();
    const options = { connection: { ...connection, maxRetriesPerRequest: null }, concurrency };
    new Worker(QUEUE, async (job) => notes.take(job.data), options);
    process.once("SIGTERM", () => process.exit(0));
    await new Promise(() => setInterval(() => {}, 60_000));
  },
});
