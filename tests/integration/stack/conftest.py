from __future__ import annotations

from tests.support.stack.fixtures import harness_dir as harness_dir
from tests.support.stack.fixtures import make_settings as make_settings
from tests.support.stack.fixtures import stack_dir as stack_dir
from tests.support.stack.origin import origin as origin
