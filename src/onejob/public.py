"""The public names, and only those; `onejob` itself hands them out, and imports them when the first is asked for."""

from onejob.app import App
from onejob.blockers import Blocker
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
    StoreUnavailable,
    TransactionTimeout,
    Undecodable,
    UnknownBlocker,
    UnknownSchedule,
    UnknownTask,
    WrongCall,
)
from onejob.core.filter import JobFilter
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.core.lane import Lane, QueueLimits, Rate
from onejob.core.retry import Exponential, Fixed, Retry
from onejob.core.timing import Cron, Every
from onejob.current import CurrentJob, current_job
from onejob.explain import Explanation
from onejob.hooks import Ended, Ending
from onejob.intake.handle import Intake
from onejob.intake.sources import Query, Rows, Table
from onejob.plans import Call
from onejob.queues import Queue
from onejob.receipt import Receipt
from onejob.schedules import ScheduleView
from onejob.settings import Retention

__all__ = [
    "APP_WINDOW",
    "App",
    "ArgumentsInvalid",
    "Blocker",
    "Call",
    "Cron",
    "CurrentJob",
    "DuplicateJob",
    "Ended",
    "Ending",
    "Every",
    "Explanation",
    "Exponential",
    "Fail",
    "Fixed",
    "Intake",
    "InvalidOption",
    "JobFailed",
    "JobFilter",
    "JobRevoked",
    "KeyBusy",
    "Lane",
    "LeaseLost",
    "OnejobError",
    "Outcome",
    "PayloadMismatch",
    "PayloadTooLarge",
    "Query",
    "Queue",
    "QueueLimits",
    "Rate",
    "Receipt",
    "ResultGone",
    "ResultTimeout",
    "Retention",
    "Retry",
    "Rows",
    "ScheduleView",
    "SchemaMismatch",
    "Snooze",
    "State",
    "StoreBusy",
    "StoreClosed",
    "StoreFull",
    "StoreUnavailable",
    "Table",
    "TransactionTimeout",
    "Undecodable",
    "Unique",
    "UnknownBlocker",
    "UnknownSchedule",
    "UnknownTask",
    "Verdict",
    "WrongCall",
    "current_job",
]
