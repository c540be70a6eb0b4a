"""Draw samples that differ from day to day, so that in time every kernel is tested, and that a variable repeats."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Sequence
from typing import TypeVar

VARIABLE = "OPBENCH_TEST_DATE"
"""The day of the samples, such as 2026-11-28; set it to repeat a failure of another day."""

Item = TypeVar("Item")


def fix_day() -> str:
    """Return the day of all samples, and pass it to the processes of this session: midnight must not change a test."""
    return os.environ.setdefault(VARIABLE, datetime.date.today().isoformat())


def day_number() -> int:
    """Return the number of the day of all samples."""
    return datetime.date.fromisoformat(fix_day()).toordinal()


def daily_sample(items: Sequence[Item], count: int, salt: str = "") -> list[Item]:
    """Return `count` of the items, others each day and for each salt."""
    return random.Random(f"{salt} {fix_day()}").sample(items, count)
