"""The printed name of a case, such as relu/scalar[BLOCK=128](n=31), and its parts."""

from __future__ import annotations

import re
from typing import NamedTuple

CASE_NAME = re.compile(r"^(?P<operator>[\w-]+)/(?P<variant>[\w-]+)(?:\[(?P<config>[^\]]*)\])?(?P<problem>\(.*\))$")


class CaseParts(NamedTuple):
    """Variant, config in brackets and problem in parentheses, as printed in a case's name."""

    variant: str
    config: str
    problem: str

    @property
    def variant_and_config(self) -> str:
        """Return such as "nhwc_mma[BM=64]"."""
        return self.variant + self.config


def split_case(case: str) -> CaseParts:
    """Return the parts of a case's name; each is empty if `case` is not the name of a case."""
    match = CASE_NAME.match(case)
    if not match:
        return CaseParts("", "", "")
    return CaseParts(match["variant"], case[match.end("variant") : match.start("problem")], match["problem"])
