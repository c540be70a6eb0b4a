"""List the functions of the C++ namespace `opb_ptx` that implement one PTX instruction each.

The translations of `arithmetic.py` and the families of `instructions.py` call other functions, not listed here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

CHOICE_PATTERN = re.compile(r"\{([^}]*)\}")
PATTERNS = (
    "mov_{b16,b32,b64,u16,u32,u64,s32,s64,f32,pred,b32_packed,b64_packed,b32_unpacked,b64_unpacked}",
    "mov_u32_{laneid,warpid,smid,nsmid,clock,cluster_ctarank,cluster_nctarank}",
    "mov_u32_lanemask_{eq,lt,le,gt,ge}",
    "mov_u32_{tid,ntid,ctaid,nctaid,cluster_ctaid,cluster_nctaid,clusterid,nclusterid}_{x,y,z}",
    "mov_u64_{clock64,globaltimer}",
    "selp_{b32,b64,u32,u64,s32,s64,f32}",
    "{and,or,xor,not}_pred",
    "{ld,st}_{global,shared}_{,v2_,v4_}{b16,b32,b64,u16,u32,u64,s32,f32,f64}",
    "{red,atom}_{global,shared}_add_{u32,s32,u64,f32}",
    "{red,atom}_{global,shared}_{min,max}_{u32,s32}",
    "{red,atom}_{global,shared}_{and,or,xor}_b32",
    "{red,atom}_{global,shared}_{inc,dec}_u32",
    "atom_{global,shared}_{exch,cas}_{b32,b64}",
    "red_global_add_{v2,v4}_f32",
    "membar_{gl,sys,cta}",
    "fence_{acq_rel,sc,acquire,release}_{gpu,sys,cluster,cta}",
    "fence_proxy_async{,_global,_shared}",
    "cvta_{to_shared,shared}_u64",
    "prefetch_global_{L1,L2}",
    "cp_async_{ca,cg}_shared_global",
    "cp_async_{commit_group,wait_group,wait_all}",
    "cp_async_mbarrier_arrive{,_noinc}{,_shared}_b64",
    "cp_async_bulk_{commit_group,wait_group,wait_group_read}",
    "mbarrier_{init,inval,arrive,arrive_drop,arrive_expect_tx,arrive_noComplete,expect_tx,complete_tx}",
    "mbarrier_{test,try}_wait{,_parity}",
    "{ex2,lg2,rsqrt}_approx{,_ftz}_f32",
    "{tanh,sin,cos}_approx_f32",
    "prmt_b32",
    "cvt_f32_{f16,bf16}",
    "cvt_rn_{f16,bf16,f16x2,bf16x2}_f32",
    "cvt_rna_tf32_f32",
    "{ldmatrix,stmatrix}_sync_aligned_m8n8_{x1,x2,x4}{,_trans}_shared_b16",
    "mma_sync_aligned_m16n8{k8,k16}_row_col_{f16_f16_f16_f16,f32_f16_f16_f32,f32_bf16_bf16_f32}",
    "mma_sync_aligned_m16n8{k4,k8}_row_col_f32_tf32_tf32_f32",
    "mma_sync_aligned_m16n8{k16,k32}_row_col_s32_s8_s8_s32",
    "mma_sync_aligned_m16n8k32_row_col_f32_{e4m3,e5m2}_{e4m3,e5m2}_f32",
    "wgmma_{fence,commit_group,wait_group}_sync_aligned",
    "setmaxnreg_{inc,dec}_sync_aligned_u32",
    "mapa_{shared_u32,u64}",
    "getctarank_shared_u32",
    "{elect_sync,bar_warp_sync,trap,nanosleep_u32,griddepcontrol_wait}",
)
"""Patterns of function names; `{a,b}` matches each of the listed texts."""


def _names(pattern: str) -> Iterator[str]:
    """Yield each function name that a pattern describes."""
    parts = CHOICE_PATTERN.split(pattern)  # text, choice, text, ...
    for choices in itertools.product(*(part.split(",") if index % 2 else [part] for index, part in enumerate(parts))):
        yield "".join(choices)


FUNCTIONS = frozenset(name for pattern in PATTERNS for name in _names(pattern))
