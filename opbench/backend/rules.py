"""All rules: every kind of finding with its name, title and remedy.

To add a kind: add a row here, a section of the same name to docs/findings.md, and, if the emulator reports it, a row to
`RULES_BY_KIND` of emulator/reports.py. Tests check that the three agree.
"""

from __future__ import annotations

from dataclasses import dataclass

GUIDE_PAGE = "findings.md"
"""The page of the guide in docs/ that has a section for each rule, under its name."""


@dataclass(frozen=True)
class Rule:
    """One kind of finding."""

    name: str
    """As printed and as in SARIF, such as "shared-race"; also the anchor of its section in the guide."""
    title: str
    remedy: str
    """How to correct it: one sentence in the imperative."""

    @property
    def kind(self) -> str:
        """Return the rule's name as in results.jsonl, such as "shared_race"."""
        return self.name.replace("-", "_")


OUT_OF_BOUNDS = Rule(
    "out-of-bounds",
    "Access outside of an array or buffer",
    "Guard the access, such as with if (index < size), or correct the index.",
)
MISALIGNED = Rule(
    "misaligned",
    "Address is not a multiple of the access's width",
    "Use a narrower access, or pad rows so that every vector begins at a multiple of its size.",
)
UNINITIALISED_GLOBAL = Rule(
    "uninitialised-global",
    "Read of global memory that nothing has written",
    "Write the memory first: zero it in the launch, or let an earlier kernel fill it.",
)
UNINITIALISED_SHARED = Rule(
    "uninitialised-shared",
    "Read of shared memory that the block has not written",
    "Write every element before the barrier, including the elements at the edges of a tile.",
)
UNINITIALISED_LOCAL = Rule(
    "uninitialised-local",
    "Read of a local variable that has no value",
    "Give the variable a value where it is declared.",
)
CONSTANT_STORE = Rule(
    "constant-store",
    "Store into __constant__ memory",
    "Declare the variable __device__, or fill it before the launch (`constants` in the header).",
)
INDEX_OVERFLOW = Rule(
    "index-overflow",
    "Integer result too large for its type",
    "Compute the index in long long or size_t: cast one operand before the multiplication.",
)
STACK_OVERFLOW = Rule(
    "stack-overflow",
    "Local memory of a thread exhausted",
    "Use smaller local arrays, or end the recursion earlier.",
)
SHARED_RACE = Rule(
    "shared-race",
    "Race between threads of a block in shared memory",
    "Put __syncthreads() between the two accesses.",
)
GLOBAL_RACE = Rule(
    "global-race",
    "Race between threads of a block in global memory",
    "Put __syncthreads() between the two accesses, or give each thread elements of its own.",
)
BLOCK_RACE = Rule(
    "block-race",
    "Race between blocks in global memory, or in shared memory of a cluster",
    "Let each block write elements of its own, use atomics, or split the kernel into two launches.",
)
SAME_VALUE = Rule(
    "same-value",
    "Several threads store the same value",
    "Nothing needs to change; let one thread store the value if you want to keep reports clean.",
)
UNORDERED_READ = Rule(
    "unordered-read",
    "Plain read of a location that other blocks update atomically",
    "Use the value that the atomic operation returns, unless the kernel is right with every value of the location.",
)
DIVERGENT_BARRIER = Rule(
    "divergent-barrier",
    "Threads of a warp wait at different barriers",
    "Move __syncthreads() out of the branch, so that all threads of the block reach the same one.",
)
WARP_MASK = Rule(
    "warp-mask",
    "Mask of a warp operation does not match the lanes that execute it",
    "Let all lanes of the mask execute the operation, or compute the mask with __ballot_sync before the branch.",
)
PARTIAL_WARP = Rule(
    "partial-warp",
    "Instruction of a whole warp or warpgroup that only a part executes",
    "Launch blocks of a multiple of 32 threads (128 for wgmma), and let all lanes of the warp reach the instruction.",
)
DEADLOCK = Rule(
    "deadlock",
    "Deadlock: every remaining thread waits",
    "Let every thread that others wait for arrive at the barrier or set the flag, or correct the condition.",
)
TRAP = Rule(
    "trap",
    "Kernel stopped itself or executed an invalid operation",
    "Correct the condition that the message names.",
)
UNFINISHED_COPY = Rule(
    "unfinished-copy",
    "Read of memory that an asynchronous copy may still be filling",
    "Wait for the copy before the read: cp.async.wait_group and a barrier, or the copy's mbarrier.",
)
UNFINISHED_PRODUCT = Rule(
    "unfinished-product",
    "Use of wgmma's accumulators or operands before the product has finished",
    "Execute wgmma.commit_group and wgmma.wait_group before the use.",
)
EARLY_OVERWRITE = Rule(
    "early-overwrite",
    "Shared memory overwritten while an asynchronous operation may still read it",
    "Wait until the reader has finished, such as on the stage's empty barrier; after a wait in one thread, put a "
    "barrier before the accesses of the others.",
)
MISSING_FENCE = Rule(
    "missing-fence",
    "No proxy fence between ordinary stores and an asynchronous read",
    "Execute fence.proxy.async after the stores and before the barrier.",
)
MBARRIER = Rule(
    "mbarrier",
    "Invalid use of an mbarrier",
    "Initialise the mbarrier once, before its use, and give it memory of its own.",
)
CLUSTER_EXIT = Rule(
    "cluster-exit",
    "Block left its cluster while others still access its shared memory",
    "Synchronise the cluster before a block returns.",
)
ILLEGAL_INSTRUCTION = Rule(
    "illegal-instruction",
    "Instruction with operands that the hardware does not accept",
    "Correct the operand that the message names.",
)
DIFFERENT_PRODUCTS = Rule(
    "different-products",
    "Warps of a warpgroup issue different wgmma instructions",
    "Let all four warps of the warpgroup execute the same wgmma with the same operands.",
)
MISSING_WAIT = Rule(
    "missing-wait",
    "Access to an earlier launch's data before griddepcontrol.wait",
    "Execute griddepcontrol.wait (cudaGridDependencySynchronize) before the first such access.",
)

WRONG_RESULT = Rule(
    "wrong-result",
    "Output differs from the reference by more than is allowed",
    "Compare the kernel with the operator's formula, beginning at the element that is named.",
)
UNWRITTEN_OUTPUT = Rule(
    "unwritten-output",
    "Output elements that no thread wrote",
    "Launch enough threads for every element, and let each thread reach its store.",
)
NOT_FINITE = Rule(
    "not-finite",
    "Output is NaN or infinite where the reference is finite",
    "Look for uninitialised memory, a division by zero or an overflow in what the element is computed from.",
)
CHANGED_INPUT = Rule(
    "changed-input",
    "Kernel wrote to one of its inputs",
    "Write to the output or to a workspace; an operator that updates in place declares it.",
)
POINTER_TYPE = Rule(
    "pointer-type",
    "Pointer to elements of another type than the tensor's",
    "Let the kernel take pointers to the tensor's type, or choose a dtype (`supports`) or an operator that fits.",
)
FAILED_CASE = Rule(
    "failed-case",
    "Case could not be built, launched or finished",
    "Correct what the message names, then check again.",
)

NOTES = frozenset({SAME_VALUE.kind, UNORDERED_READ.kind})
"""Kinds of notes: they do not make a case wrong and are shown on request."""

RULES = (
    WRONG_RESULT,
    UNWRITTEN_OUTPUT,
    NOT_FINITE,
    CHANGED_INPUT,
    POINTER_TYPE,
    OUT_OF_BOUNDS,
    MISALIGNED,
    UNINITIALISED_GLOBAL,
    UNINITIALISED_SHARED,
    UNINITIALISED_LOCAL,
    CONSTANT_STORE,
    INDEX_OVERFLOW,
    STACK_OVERFLOW,
    SHARED_RACE,
    GLOBAL_RACE,
    BLOCK_RACE,
    SAME_VALUE,
    UNORDERED_READ,
    DIVERGENT_BARRIER,
    WARP_MASK,
    PARTIAL_WARP,
    DEADLOCK,
    TRAP,
    UNFINISHED_COPY,
    UNFINISHED_PRODUCT,
    EARLY_OVERWRITE,
    MISSING_FENCE,
    MBARRIER,
    CLUSTER_EXIT,
    ILLEGAL_INSTRUCTION,
    DIFFERENT_PRODUCTS,
    MISSING_WAIT,
    FAILED_CASE,
)
"""In the order of the guide."""

_BY_KIND = {rule.kind: rule for rule in RULES}


def rule_of(kind: str) -> Rule:
    """Return the rule for a kind of finding; for a kind that only another version knows, a rule without a remedy."""
    return _BY_KIND.get(kind) or Rule(kind.replace("_", "-"), kind.replace("_", " "), "")
