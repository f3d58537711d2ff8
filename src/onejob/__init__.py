"""onejob: a durable job queue in which any notion of a duplicate job is one line of policy."""

from onejob.app import App
from onejob.core.dedup import APP_WINDOW, Unique, Verdict
from onejob.core.errors import (
    ArgumentsInvalid,
    DuplicateJob,
    Fail,
    InvalidOption,
    JobFailed,
    JobRevoked,
    KeyBusy,
    LeaseLost,
    OnejobError,
    PayloadMismatch,
    PayloadTooLarge,
    ResultGone,
    ResultTimeout,
    SchemaMismatch,
    Snooze,
    StoreBusy,
    StoreClosed,
    StoreFull,
    TransactionTimeout,
    Undecodable,
    UnknownTask,
    WrongCall,
)
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.core.retry import Exponential, Fixed, Retry
from onejob.current import current_job
from onejob.explain import Explanation
from onejob.receipt import Receipt
from onejob.settings import Retention

__all__ = [
    "APP_WINDOW",
    "App",
    "ArgumentsInvalid",
    "DuplicateJob",
    "Explanation",
    "Exponential",
    "Fail",
    "Fixed",
    "InvalidOption",
    "JobFailed",
    "JobRevoked",
    "KeyBusy",
    "LeaseLost",
    "OnejobError",
    "Outcome",
    "PayloadMismatch",
    "PayloadTooLarge",
    "Receipt",
    "ResultGone",
    "ResultTimeout",
    "Retention",
    "Retry",
    "SchemaMismatch",
    "Snooze",
    "State",
    "StoreBusy",
    "StoreClosed",
    "StoreFull",
    "TransactionTimeout",
    "Undecodable",
    "Unique",
    "UnknownTask",
    "Verdict",
    "WrongCall",
    "current_job",
]
