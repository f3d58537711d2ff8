// pg-boss. Keys are unique among the jobs that wait, the cheapest of its policies.

import * as module from "pg-boss";
import { Notes, main, url } from "./measured.mjs";

const PgBoss = module.PgBoss ?? module.default;
const QUEUE = "nothing";
const UNIQUE = "unique";
let boss;

async function start() {
  boss = new PgBoss({ connectionString: url, max: 10 });
  boss.on("error", (error) => console.error(error));
  await boss.start();
}

await main({
  open: start,
  close: () => boss.stop({ graceful: false }),
  async install() {
    await start();
    await boss.createQueue(QUEUE);
    await boss.createQueue(UNIQUE, { name: UNIQUE, policy: "short" });
    await boss.stop({ graceful: false });
  },
  one: (data) => boss.send(QUEUE, data),
  many: (payloads) => insert(QUEUE, payloads.map((data) => ({ data }))),
  offer: (keyed) => insert(UNIQUE, keyed.map(([singletonKey, data]) => ({ data, singletonKey }))),
  async work(concurrency) {
    const notes = new Notes();
    await start();
    await boss.work(QUEUE, { batchSize: concurrency, pollingIntervalSeconds: 0.5 }, async (jobs) => {
      for (const job of jobs) notes.take(job.data);
    });
  },
});

/** Up to version 10 each job names its queue, from 11 on the call does. */
function insert(queue, jobs) {
  const isNew = Number(process.env.BENCH_VERSION.split(".")[0]) > 10;
  return isNew ? boss.insert(queue, jobs) : boss.insert(jobs.map((job) => ({ ...job, name: queue })));
}
