"""The launches to explain: a case of an operator, or launches of a file that belongs to no operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opbench.insight.remedies import remedies
from opbench.kernels.case import Case
from opbench.kernels.variant import Variant
from opbench.paths import portable_path


@dataclass(frozen=True)
class Subject:
    """A case with the other variants of its operator, or launches without an operator, whose arrays alone are known."""

    name: str
    title: str
    array_bytes: int
    """Bytes of all arrays and of the workspace, each counted once; 0 if the size of one is not known."""
    case: Case | None = None
    """None for launches without an operator: nothing says which bytes and FLOPs the problem needs."""
    variants: Sequence[Variant] = ()
    """All variants of the operator, in which remedies are searched."""

    @classmethod
    def of_case(cls, case: Case, variants: Sequence[Variant] = ()) -> Subject:
        """Return a case, with the other variants of its operator, as the subject of an explanation."""
        workspace = sum(math.prod(tensor.shape) * 4 for tensor in case.workspace(sm_count=1))
        return cls(case.name, case.variant.title, case.problem.bytes() + workspace, case, variants)

    @property
    def compulsory_bytes(self) -> int:
        """Return the bytes that the problem needs; without an operator those of all arrays."""
        return self.case.problem.bytes() if self.case else self.array_bytes

    @property
    def flops(self) -> int:
        """Return the FLOPs of the problem; 0 without an operator."""
        return self.case.problem.flops() if self.case else 0

    def uses(self, mechanism: str) -> bool:
        """Return whether the variant's header names a mechanism."""
        return self.case is not None and mechanism in self.case.variant.mechanism

    def remedies(self, mechanism: str) -> list[str]:
        """Return the names of variants that use a mechanism and may replace the case's variant.

        Those that build on it come first, with the fewest steps between them.
        """
        if self.case is None:
            return []
        return remedies(mechanism, self.case.variant, self.case.problem, self.variants)

    def next_variants(self) -> tuple[str, ...]:
        """Return the ids of the variants that build on the case's variant."""
        return tuple(
            variant.id for variant in self.variants if self.case and variant.builds_on == self.case.variant.name
        )

    def text(self, path: str) -> str:
        """Return the text of the variant's file or header; "" for another file."""
        sources = self.case.variant.sources if self.case else ()
        return next(
            (source.text for source in sources if portable_path(str(source.path)) in (path, portable_path(path))), ""
        )
