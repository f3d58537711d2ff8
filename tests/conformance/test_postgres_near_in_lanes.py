"""The promises of lanes and revocation, asked as `test_postgres_near` asks those of settling and chains."""

from __future__ import annotations

import pytest
from test_postgres_near import store  # noqa: F401

from onejob.testing.conformance.fixtures import clock  # noqa: F401
from onejob.testing.conformance.lanes import *  # noqa: F403
from onejob.testing.conformance.revoke import *  # noqa: F403

pytestmark = pytest.mark.torture  # settling frees the slots by the statements that it sends from anywhere
