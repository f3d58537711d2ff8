// graphile-worker with what its guide on performance names: a local queue, and completions in batches.
// A batch replaces the waiting job that has its key.

import worker from "graphile-worker";
import pg from "pg";
import { Notes, main, url } from "./measured.mjs";

const logger = new worker.Logger(() => () => {});
let pool, utils;

await main({
  async open() {
    pool = new pg.Pool({ connectionString: url, max: 10 });
    utils = await worker.makeWorkerUtils({ pgPool: pool, logger });
  },
  async close() {
    await utils.release();
    await pool.end();
  },
  async install() {
    await this.open();
    await utils.migrate();
    await this.close();
  },
  one: (payload) => utils.addJob("nothing", payload),
  many: (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: "nothing", payload }))),
  offer: (keyed) =>
    utils.addJobs(keyed.map(([jobKey, payload]) => ({ identifier: "nothing", payload, jobKey }))),
  async work(concurrency) {
    const notes = new Notes();
    const preset = {
      worker: {
        connectionString: url,
        concurrentJobs: concurrency,
        maxPoolSize: 20,
        pollInterval: 2_000,
        localQueue: { size: Math.max(5 * concurrency, 100) },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    };
    const taskList = { nothing: async (payload) => notes.take(payload) };
    const runner = await worker.run({ preset, logger, taskList, noHandleSignals: true });
    process.once("SIGTERM", () => process.exit(0));
    await runner.promise;
  },
});
