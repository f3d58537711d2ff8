"""The worker: claims jobs, runs their handlers and settles them."""

from onejob.worker.setup import NamedBackoff, WorkerSetup
from onejob.worker.worker import Worker

__all__ = ["NamedBackoff", "Worker", "WorkerSetup"]
