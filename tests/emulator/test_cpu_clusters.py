"""Shared memory of other blocks of a cluster: races, bounds, ends of blocks, and what the cluster's barrier orders."""

from __future__ import annotations

import numpy as np
import pytest

from opbench.backend.base import Trace
from opbench.backend.findings import Finding
from opbench.kernels.launch import KernelLaunch
from support.builders.on_cpu import Bench

START = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(int* out) {
  __shared__ int part[32];
  __shared__ int other[8];
  auto cluster = cg::this_cluster();
  const unsigned rank = cluster.block_rank(), t = threadIdx.x;
  int* theirs = cluster.map_shared_rank(part, 1 - rank);
  if (t < 8) other[t] = 1;
"""
MEET = "cluster.sync();"
RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");'
RELEASE = 'asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");'
FENCE = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
WAIT = 'asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");'


def trace(bench: Bench, body: str, *, sample: bool = False) -> Trace:
    """Trace two clusters of two blocks of 32 threads; a sample's blocks have a limited time."""
    text = START + body.replace("; ", ";\n") + "\n}"
    out = bench.backend.allocate("out", (128,), "i32")
    out.write(np.zeros(128, np.int32))
    step = KernelLaunch("k", (4, 1, 1), (32, 1, 1), 0, ("out",), cluster=(2, 1, 1))
    run = bench.backend.trace_sample if sample else bench.backend.trace
    return run(bench.request(text, "k"), [step], {"out": out})


def check(bench: Bench, body: str) -> list[Finding]:
    return list(trace(bench, body).findings)


RIGHT = {
    "reads behind a barrier": f"part[t] = t; {MEET} out[blockIdx.x * 32 + t] = theirs[31 - t]; {MEET}",
    "writes and reads": f"{MEET} theirs[t] = t; {MEET} out[blockIdx.x * 32 + t] = part[31 - t];",
    "adds": f"part[t] = 0; {MEET} atomicAdd(theirs, 1); {MEET} out[blockIdx.x * 32 + t] = part[0];",
    "in turn": f"part[t] = t; {MEET} int v = theirs[t]; {MEET} part[t] = v; {MEET} v = theirs[t]; {MEET}",
    "arrives with release": f"part[t] = t; {RELEASE} {WAIT} out[blockIdx.x * 32 + t] = theirs[31 - t]; {MEET}",
    "fences": f"part[t] = t; {FENCE} {RELAXED} {WAIT} out[blockIdx.x * 32 + t] = theirs[31 - t]; {MEET}",
    "alone": f"part[t] = t; __syncthreads(); out[blockIdx.x * 32 + t] = part[31 - t]; {MEET}",
}
WRONG = {
    "reads at once": (
        f"part[t] = t; __syncthreads(); out[blockIdx.x * 32 + t] = theirs[31 - t]; {MEET}",
        "block_race",
    ),
    "overwrites what is read": (
        f"part[t] = t; {MEET} out[blockIdx.x * 32 + t] = theirs[t]; part[t] = 7; {MEET}",
        "block_race",
    ),
    "writes at once": (f"part[t] = t; {MEET} theirs[t] = 5; out[blockIdx.x * 32 + t] = part[t]; {MEET}", "block_race"),
    "arrives relaxed": (
        f"part[t] = t; {RELAXED} {WAIT} out[blockIdx.x * 32 + t] = theirs[31 - t]; {MEET}",
        "block_race",
    ),
    "beyond the array": (f"part[t] = t; {MEET} out[blockIdx.x * 32 + t] = theirs[t + 40]; {MEET}", "out_of_bounds"),
    "leaves early": (f"part[t] = t; {MEET} if (rank) return; out[blockIdx.x * 32 + t] = theirs[t];", "cluster_exit"),
    "leaves unasked": (f"part[t] = t; {MEET} out[blockIdx.x * 32 + t] = theirs[t];", "cluster_exit"),
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=list(RIGHT))
def test_ordered_accesses_are_right(bench: Bench, body: str) -> None:
    kinds = {(found.kind, found.message) for found in check(bench, body) if found.buffer != "out"}
    assert kinds == set()


@pytest.mark.parametrize(("body", "kind"), WRONG.values(), ids=list(WRONG))
def test_what_nothing_orders_is_found(bench: Bench, body: str, kind: str) -> None:
    found = [one for one in check(bench, body) if one.buffer != "out"]
    assert kind in {one.kind for one in found}
    assert all(one.line for one in found)
    assert kind == "cluster_exit" or {one.buffer for one in found} == {"part"}
    assert kind != "block_race" or any("cluster.sync()" in one.remedy for one in found)


SLOW = "if (rank == 0) { volatile long i = 0; while (i < 1L << 40) i = i + 1; }"
STOPPED = {
    "reads": f"part[t] = t; {MEET} {SLOW} out[blockIdx.x * 32 + t] = theirs[t]; {MEET}",
    "meets": f"part[t] = t; {MEET} {SLOW} {MEET} out[blockIdx.x * 32 + t] = theirs[t]; {MEET}",
    "is met": f"part[t] = t; {SLOW.replace('== 0', '== 1')} {MEET} out[blockIdx.x * 32 + t] = theirs[t]; {MEET}",
}


@pytest.mark.parametrize("body", STOPPED.values(), ids=list(STOPPED))
def test_a_block_whose_time_is_over_is_no_mistake_of_its_cluster(bench: Bench, body: str) -> None:
    stopped = trace(bench, body, sample=True)
    assert (stopped.findings, stopped.unfinished_blocks) == ((), 0b11)


def test_a_sample_finds_a_block_that_leaves_its_cluster_early(bench: Bench) -> None:
    found = trace(bench, WRONG["leaves early"][0], sample=True).findings
    assert {one.kind for one in found} == {"cluster_exit"}
