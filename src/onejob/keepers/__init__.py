"""The keepers: what must be done now and then, by whichever worker comes first."""

from onejob.keepers.intake import IntakeKeeper
from onejob.keepers.pruner import Pruner
from onejob.keepers.rescuer import Rescuer
from onejob.keepers.rounds import Keeper, make_rounds
from onejob.keepers.scheduler import Scheduler

__all__ = ["IntakeKeeper", "Keeper", "Pruner", "Rescuer", "Scheduler", "make_rounds"]
