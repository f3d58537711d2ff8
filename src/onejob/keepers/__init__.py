"""The keepers: what must be done now and then, by whichever worker comes first."""

from onejob.keepers.pruner import Pruner
from onejob.keepers.rescuer import Rescuer
from onejob.keepers.rounds import Keeper, make_rounds

__all__ = ["Keeper", "Pruner", "Rescuer", "make_rounds"]
