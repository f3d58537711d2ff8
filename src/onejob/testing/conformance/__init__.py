"""The published conformance suite: every promise of `onejob.store`, as tests, one module per operation.

A store gets the whole suite from a test module of three lines:

    from onejob.testing.conformance import *

    @pytest.fixture
    def store(clock): return opened("mystore://…", clock)

`clock` is the fake clock the store must run on. The `onejob` pytest plugin runs these coroutine tests.
"""

from onejob.testing.conformance.amend import TestDelete, TestRetry, TestRevoke, TestStates
from onejob.testing.conformance.beat import TestBeat
from onejob.testing.conformance.blockers import (
    TestBlockers,
    TestBlockersOfContinuations,
    TestDeletingBlockers,
    TestFailedBlockers,
)
from onejob.testing.conformance.chain_corners import (
    TestCancelledChains,
    TestDeadChains,
    TestPruneOfChains,
    TestRepeatedCallsWithBlockers,
    TestStrandedHolders,
    TestTakenPlaces,
)
from onejob.testing.conformance.chains import TestChains, TestChainsAsAWhole, TestKeysOfChains
from onejob.testing.conformance.claim import TestClaim, TestStock
from onejob.testing.conformance.corners import TestCorners
from onejob.testing.conformance.dead import (
    TestDead,
    TestDeleteOfTheDead,
    TestListOfTheDead,
    TestRetryOfTheDead,
)
from onejob.testing.conformance.enqueue import TestEnqueue
from onejob.testing.conformance.expired import TestExpired
from onejob.testing.conformance.filter import TestFilter
from onejob.testing.conformance.fire import TestFire, TestFireAgainstChanges, TestSlotsAndPolicies
from onejob.testing.conformance.fixtures import clock
from onejob.testing.conformance.inspect import TestInspect
from onejob.testing.conformance.lane_limits import TestDuplicatesInLanes, TestLaneLimits
from onejob.testing.conformance.lane_views import TestAhead, TestLaneViews
from onejob.testing.conformance.lanes import TestLanes, TestRetriesInLanes, TestSlots
from onejob.testing.conformance.limits import TestPause, TestQueueLimits
from onejob.testing.conformance.openings import TestOpenings
from onejob.testing.conformance.prune import TestPrune
from onejob.testing.conformance.rates import TestGates, TestRates
from onejob.testing.conformance.release import TestRelease
from onejob.testing.conformance.revoke import TestRevocation
from onejob.testing.conformance.schedules import TestDue, TestPutSchedules
from onejob.testing.conformance.settle import TestSettle
from onejob.testing.conformance.transaction import TestTransaction
from onejob.testing.conformance.wait import TestWait

__all__ = [
    "TestAhead",
    "TestBeat",
    "TestBlockers",
    "TestBlockersOfContinuations",
    "TestCancelledChains",
    "TestChains",
    "TestChainsAsAWhole",
    "TestClaim",
    "TestCorners",
    "TestDead",
    "TestDeadChains",
    "TestDelete",
    "TestDeleteOfTheDead",
    "TestDeletingBlockers",
    "TestDue",
    "TestDuplicatesInLanes",
    "TestEnqueue",
    "TestExpired",
    "TestFailedBlockers",
    "TestFilter",
    "TestFire",
    "TestFireAgainstChanges",
    "TestGates",
    "TestInspect",
    "TestKeysOfChains",
    "TestLaneLimits",
    "TestLaneViews",
    "TestLanes",
    "TestListOfTheDead",
    "TestOpenings",
    "TestPause",
    "TestPrune",
    "TestPruneOfChains",
    "TestPutSchedules",
    "TestQueueLimits",
    "TestRates",
    "TestRelease",
    "TestRepeatedCallsWithBlockers",
    "TestRetriesInLanes",
    "TestRetry",
    "TestRetryOfTheDead",
    "TestRevocation",
    "TestRevoke",
    "TestSettle",
    "TestSlots",
    "TestSlotsAndPolicies",
    "TestStates",
    "TestStock",
    "TestStrandedHolders",
    "TestTakenPlaces",
    "TestTransaction",
    "TestWait",
    "clock",
]
