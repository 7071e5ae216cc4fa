from __future__ import annotations

from tests.support.emulators.fixtures import arguments as arguments
from tests.support.emulators.fixtures import boxes as boxes
from tests.support.emulators.fixtures import emulate as emulate
from tests.support.emulators.fixtures import options as options
from tests.support.emulators.fixtures import root as root
from tests.support.emulators.fixtures import shared_box as shared_box
