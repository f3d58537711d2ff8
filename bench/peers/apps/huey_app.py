"""The app that huey's own consumer serves, in huey's own environment; run as a program, it fills the queue, and says how fast."""

import json
import os
import time
from pathlib import Path

from huey import SqliteHuey

huey = SqliteHuey(
    "bench", filename=os.environ["BENCH_FILE"], results=False, fsync=bool(os.environ["BENCH_FSYNC"])
)
count = int(os.environ["BENCH_COUNT"])
starts: list[float] = []


@huey.task(name="nothing")
def nothing(payload: dict[str, object]) -> None:
    starts.append(time.perf_counter())
    if len(starts) == count:
        answer = Path(os.environ["BENCH_ANSWER"])
        unfinished = answer.with_suffix(".part")
        unfinished.write_text(json.dumps(count / (starts[-1] - starts[0])))
        unfinished.rename(answer)


if __name__ == "__main__":
    from huey_app import nothing as known  # under the name by which the consumer knows it

    started = time.perf_counter()
    for number in range(count):
        known(
            {
                "user_id": 123456,
                "kind": "welcome_email",
                "ref": "ord_8f3b2c1d90",
                "amount": 19.99,
                "tags": ["a", "b"],
                "number": number,
            }
        )
    print(count / (time.perf_counter() - started))
