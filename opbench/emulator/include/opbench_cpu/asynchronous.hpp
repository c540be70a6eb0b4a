// Declares mbarriers, bulk copies, wgmma, named barriers and clusters as calls of the runtime, which does the work.
//
// None of these functions is inlined: the return address is the position that a finding names.
#pragma once

namespace opb_ptx {

#ifdef OPB_TRACE
#define OPB_EVENT OPB_INSTRUCTION
#else
#define OPB_EVENT static __attribute__((noinline))
#endif
#define OPB_AT __builtin_return_address(0)

OPB_EVENT void cvta_shared_u64(unsigned long long& pointer, unsigned long long address) {
  pointer = (unsigned long long)opb_shared_pointer(address);
}

// ---- mbarrier
OPB_EVENT void mbarrier_init(unsigned long long bar, unsigned count) { opb_mbarrier_init(bar, count, OPB_AT); }
OPB_EVENT void mbarrier_inval(unsigned long long bar) { opb_mbarrier_forget(bar, OPB_AT); }
template <class T>
OPB_EVENT void mbarrier_arrive(T&& state, unsigned long long bar, unsigned count = 1) {
  state = opb_mbarrier_arrive(bar, count, 0, false, OPB_AT);
}
template <class T>
OPB_EVENT void mbarrier_arrive_noComplete(T&& state, unsigned long long bar, unsigned count) {
  state = opb_mbarrier_arrive(bar, count, 0, false, OPB_AT);
}
template <class T>
OPB_EVENT void mbarrier_arrive_drop(T&& state, unsigned long long bar, unsigned count = 1) {
  state = opb_mbarrier_arrive(bar, count, 0, true, OPB_AT);
}
template <class T>
OPB_EVENT void mbarrier_arrive_expect_tx(T&& state, unsigned long long bar, unsigned bytes) {
  state = opb_mbarrier_arrive(bar, 1, bytes, false, OPB_AT);
}
OPB_EVENT void mbarrier_expect_tx(unsigned long long bar, unsigned bytes) { opb_mbarrier_expect(bar, bytes, OPB_AT); }
OPB_EVENT void mbarrier_complete_tx(unsigned long long bar, unsigned bytes) {
  opb_mbarrier_expect(bar, -(long long)bytes, OPB_AT);
}
#define OPB_WAITS(NAME, KIND)                                                                        \
  OPB_EVENT void NAME(bool& over, unsigned long long bar, unsigned long long wanted, unsigned = 0) { \
    over = opb_mbarrier_over(bar, KIND, wanted, OPB_AT);                                             \
  }
OPB_WAITS(mbarrier_try_wait_parity, OPB_WAIT_PARITY)
OPB_WAITS(mbarrier_test_wait_parity, OPB_WAIT_PARITY)
OPB_WAITS(mbarrier_try_wait, OPB_WAIT_STATE)
OPB_WAITS(mbarrier_test_wait, OPB_WAIT_STATE)
OPB_WAITS(blocking_mbarrier_wait_parity, OPB_WAIT_PARITY | OPB_WAIT_BLOCKING)
OPB_WAITS(blocking_mbarrier_wait, OPB_WAIT_STATE | OPB_WAIT_BLOCKING)
OPB_EVENT void cp_async_mbarrier_arrive_shared_b64(unsigned long long bar) { opb_copies_arrive(bar, false, OPB_AT); }
OPB_EVENT void cp_async_mbarrier_arrive_b64(unsigned long long bar) { opb_copies_arrive(bar, false, OPB_AT); }
OPB_EVENT void cp_async_mbarrier_arrive_noinc_shared_b64(unsigned long long bar) {
  opb_copies_arrive(bar, true, OPB_AT);
}
OPB_EVENT void cp_async_mbarrier_arrive_noinc_b64(unsigned long long bar) { opb_copies_arrive(bar, true, OPB_AT); }

// ---- bulk copies: kinds, places and ranks come from the instruction's qualifiers
OPB_EVENT void load_tensor(unsigned kind, unsigned long long to, unsigned long long map, opb_place place,
                           unsigned long long bar, unsigned ranks) {
  opb_load_tensor(kind, to, (const void*)map, &place, bar, ranks, OPB_AT);
}
OPB_EVENT void store_tensor(unsigned kind, unsigned long long map, opb_place place, unsigned long long from) {
  opb_store_tensor(kind, (const void*)map, &place, from, OPB_AT);
}
OPB_EVENT void load_bulk(bool from_global, unsigned long long to, unsigned long long from, unsigned bytes,
                         unsigned long long bar, unsigned ranks) {
  opb_load_bulk(from_global, to, from, bytes, bar, ranks, OPB_AT);
}
OPB_EVENT void store_bulk(unsigned kind, unsigned type, unsigned long long to, unsigned long long from,
                          unsigned bytes) {
  opb_store_bulk(kind, type, to, from, bytes, OPB_AT);
}
template <class T, class... Rest>
OPB_EVENT void store_async(unsigned long long to, unsigned long long bar, T first, Rest... rest) {
  const T values[] = {first, (T)rest...};
  opb_store_async(to, bar, values, sizeof values, OPB_AT);
}
OPB_EVENT void cp_async_bulk_commit_group() { opb_commit_bulk(); }
OPB_EVENT void cp_async_bulk_wait_group(unsigned pending) { opb_wait_for_bulk(pending, OPB_AT); }
OPB_EVENT void cp_async_bulk_wait_group_read(unsigned pending) { opb_wait_for_bulk(pending, OPB_AT); }
OPB_EVENT void fence_proxy_async() { opb_fence_proxies(); }
OPB_EVENT void fence_proxy_async_shared() { opb_fence_proxies(); }
OPB_EVENT void fence_proxy_async_global() {}

// ---- wgmma
struct left_matrix {
  unsigned long long descriptor;
  unsigned registers[4];
};
template <opb_type A, opb_type B, int N, int K, bool InRegisters, class... Sums>
OPB_EVENT void product(left_matrix a, unsigned long long b, bool add, int scale_a, int scale_b, bool a_transposed,
                       bool b_transposed, Sums&... sums) {
  float* const places[] = {(float*)&sums...};
  const opb_product made = {A,
                            B,
                            N,
                            K,
                            InRegisters,
                            a_transposed,
                            b_transposed,
                            add,
                            sizeof...(Sums) == N / 4,
                            scale_a,
                            scale_b,
                            a.descriptor,
                            b,
                            {a.registers[0], a.registers[1], a.registers[2], a.registers[3]}};
  opb_product_issue(&made, places, OPB_AT);
}
OPB_EVENT void wgmma_fence_sync_aligned() { opb_product_fence(); }
OPB_EVENT void wgmma_commit_group_sync_aligned(OPB_PTX_SITE) { opb_product_commit(file, line); }
OPB_EVENT void wgmma_wait_group_sync_aligned(unsigned pending, OPB_PTX_SITE) {
  opb_product_wait(pending, file, line, OPB_AT);
}

// ---- named barriers, elect.sync, setmaxnreg
OPB_EVENT void named_barrier(unsigned barrier, unsigned threads) { opb_named_barrier(barrier, threads, true, OPB_AT); }
// Barrier 0 of all threads is __syncthreads().
OPB_CONVERGENT __forceinline__ void bar_sync(unsigned barrier, OPB_PTX_SITE) {
  if (barrier == 0) return opb_syncthreads(file, line);
  named_barrier(barrier, blockDim.x * blockDim.y * blockDim.z);
}
OPB_CONVERGENT __forceinline__ void bar_sync(unsigned barrier, unsigned threads, OPB_PTX_SITE) {
  if (barrier == 0 && threads == blockDim.x * blockDim.y * blockDim.z) return opb_syncthreads(file, line);
  named_barrier(barrier, threads);
}
OPB_EVENT void bar_arrive(unsigned barrier, unsigned threads) { opb_named_barrier(barrier, threads, false, OPB_AT); }
template <class T>
OPB_CONVERGENT OPB_UNSEEN_INLINE void elect_sync(T&& leader, bool& elected, unsigned mask, OPB_PTX_SITE) {
  const unsigned lane = (unsigned)__builtin_ctz((unsigned)opb_warp(mask, OPB_WARP_BALLOT, 1, 0, file, line) | 1u << 31);
  leader = lane;
  elected = lane == opb_lane_id();
}
OPB_EVENT void setmaxnreg_inc_sync_aligned_u32(unsigned count) { opb_set_registers(count, OPB_AT); }
OPB_EVENT void setmaxnreg_dec_sync_aligned_u32(unsigned count) { opb_set_registers(count, OPB_AT); }

// Launches run one after another here; a trace finds a missing wait for the previous launch.
OPB_EVENT void griddepcontrol_wait() { opb_wait_for_launches(); }

// ---- clusters
OPB_EVENT void mapa_shared_u32(unsigned& there, unsigned long long address, unsigned rank) {
  there = (unsigned)(address & 0xffffffu) | (rank + 1) << 24;
}
template <class Pointer>
OPB_EVENT void mapa_u64(unsigned long long& there, Pointer pointer, unsigned rank) {
  const unsigned offset = opb_shared_address((const void*)address(pointer)) & 0xffffffu;
  there = (unsigned long long)opb_shared_pointer(offset | (rank + 1) << 24);
}
OPB_EVENT void getctarank_shared_u32(unsigned& rank, unsigned long long address) {
  rank = address >> 24 ? (unsigned)(address >> 24) - 1 : opb_cluster_rank();
}
OPB_EVENT void cluster_arrive() { opb_cluster_arrive(true, OPB_AT); }
OPB_EVENT void cluster_arrive_relaxed() { opb_cluster_arrive(false, OPB_AT); }
OPB_EVENT void cluster_wait() { opb_cluster_wait(OPB_AT); }

}  // namespace opb_ptx
