// Defines a function for each PTX instruction; ptx.py rewrites each instruction of an asm statement into a call of it.
//
// Operands come in the instruction's order, braces flattened; `[address]` comes as a 64-bit number; cache qualifiers
// (.nc, .cg, .L2::128B, ...) are dropped from the name. An instruction without a function is refused at build time.
#pragma once

namespace opb_ptx {

#define OPB_INSTRUCTION static OPB_UNSEEN

template <class T>
OPB_INSTRUCTION unsigned long long address(T* pointer) {
  return (unsigned long long)pointer;
}
OPB_INSTRUCTION unsigned long long address(unsigned long long value) { return value; }
OPB_INSTRUCTION void* shared_pointer(unsigned long long address) { return opb_shared_pointer(address); }

// ---- special registers
#define OPB_REGISTER(NAME, VALUE)               \
  template <class T>                            \
  OPB_INSTRUCTION void NAME(T& destination) {   \
    destination = (T)(VALUE);                   \
  }
OPB_REGISTER(mov_u32_laneid, opb_lane_id())
OPB_REGISTER(mov_u32_warpid, opb_warp_id())
OPB_REGISTER(mov_u32_smid, 0)
OPB_REGISTER(mov_u32_nsmid, 8)
OPB_REGISTER(mov_u32_lanemask_eq, 1u << opb_lane_id())
OPB_REGISTER(mov_u32_lanemask_lt, (1u << opb_lane_id()) - 1)
OPB_REGISTER(mov_u32_lanemask_le, (2u << opb_lane_id()) - 1)
OPB_REGISTER(mov_u32_lanemask_gt, ~((2u << opb_lane_id()) - 1))
OPB_REGISTER(mov_u32_lanemask_ge, ~((1u << opb_lane_id()) - 1))
#define OPB_AXES(NAME, VALUE)     \
  OPB_REGISTER(NAME##_x, VALUE.x) \
  OPB_REGISTER(NAME##_y, VALUE.y) \
  OPB_REGISTER(NAME##_z, VALUE.z)
OPB_AXES(mov_u32_tid, threadIdx)
OPB_AXES(mov_u32_ntid, blockDim)
OPB_AXES(mov_u32_ctaid, blockIdx)
OPB_AXES(mov_u32_nctaid, gridDim)
OPB_AXES(mov_u32_cluster_ctaid, opb_cluster_place(0))
OPB_AXES(mov_u32_cluster_nctaid, opb_cluster_place(1))
OPB_AXES(mov_u32_clusterid, opb_cluster_place(2))
OPB_AXES(mov_u32_nclusterid, opb_cluster_place(3))
OPB_REGISTER(mov_u32_cluster_ctarank, opb_cluster_rank())
OPB_REGISTER(mov_u32_cluster_nctarank, opb_cluster_place(1).x * opb_cluster_place(1).y * opb_cluster_place(1).z)
OPB_REGISTER(mov_u32_clock, opb_clock())
OPB_REGISTER(mov_u64_clock64, opb_clock())
OPB_REGISTER(mov_u64_globaltimer, opb_clock())
// ---- loads and stores
#define OPB_MEMORY(SPACE, POINTER, TYPE)                                                                        \
  template <class T>                                                                                            \
  OPB_INSTRUCTION void ld_##SPACE##_##TYPE(T& a, unsigned long long from) {                                     \
    OPB_SEE(POINTER(from), sizeof(T), LOAD);                                                                    \
    __builtin_memcpy(&a, POINTER(from), sizeof(T));                                                             \
  }                                                                                                             \
  template <class T>                                                                                            \
  OPB_INSTRUCTION void ld_##SPACE##_v2_##TYPE(T& a, T& b, unsigned long long from) {                            \
    const T* source = (const T*)POINTER(from);                                                                  \
    OPB_SEE(source, 2 * sizeof(T), LOAD);                                                                       \
    a = source[0], b = source[1];                                                                               \
  }                                                                                                             \
  template <class T>                                                                                            \
  OPB_INSTRUCTION void ld_##SPACE##_v4_##TYPE(T& a, T& b, T& c, T& d, unsigned long long from) {                \
    const T* source = (const T*)POINTER(from);                                                                  \
    OPB_SEE(source, 4 * sizeof(T), LOAD);                                                                       \
    a = source[0], b = source[1], c = source[2], d = source[3];                                                 \
  }                                                                                                             \
  template <class T>                                                                                            \
  OPB_INSTRUCTION void st_##SPACE##_##TYPE(unsigned long long to, T a) {                                        \
    OPB_SEE(POINTER(to), sizeof(T), STORE);                                                                     \
    __builtin_memcpy(POINTER(to), &a, sizeof(T));                                                               \
  }                                                                                                             \
  template <class T>                                                                                            \
  OPB_INSTRUCTION void st_##SPACE##_v2_##TYPE(unsigned long long to, T a, T b) {                                \
    T* target = (T*)POINTER(to);                                                                                \
    OPB_SEE(target, 2 * sizeof(T), STORE);                                                                      \
    target[0] = a, target[1] = b;                                                                               \
  }                                                                                                             \
  template <class T>                                                                                            \
  OPB_INSTRUCTION void st_##SPACE##_v4_##TYPE(unsigned long long to, T a, T b, T c, T d) {                      \
    T* target = (T*)POINTER(to);                                                                                \
    OPB_SEE(target, 4 * sizeof(T), STORE);                                                                      \
    target[0] = a, target[1] = b, target[2] = c, target[3] = d;                                                 \
  }
#define OPB_MEMORY_TYPES(TYPE)                      \
  OPB_MEMORY(global, (void*), TYPE)                 \
  OPB_MEMORY(shared, ::opb_ptx::shared_pointer, TYPE)
OPB_MEMORY_TYPES(f32)
OPB_MEMORY_TYPES(f64)
OPB_MEMORY_TYPES(u32)
OPB_MEMORY_TYPES(s32)
OPB_MEMORY_TYPES(b32)
OPB_MEMORY_TYPES(u64)
OPB_MEMORY_TYPES(b64)
OPB_MEMORY_TYPES(u16)
OPB_MEMORY_TYPES(b16)

// Sets the memory order and scope of the next access.
#ifdef OPB_TRACE
OPB_UNSEEN_INLINE void order_next(unsigned word) { opb_trace_order(word); }
#else
OPB_UNSEEN_INLINE void order_next(unsigned) {}
#endif
template <class T, class Update>
OPB_UNSEEN_INLINE T update_atomically(unsigned long long to, unsigned word, Update update) {
  OPB_SEE_ATOMIC(to, sizeof(T), OPB_ACCESS_ATOMIC | word);
  return opb_atomic_loop((T*)to, update);
}
template <class T>
OPB_UNSEEN_INLINE T add_atomically(unsigned long long to, T a) {
  return update_atomically<T>(to, OPB_COUNTS, [=](T old) -> T { return old + a; });
}
OPB_INSTRUCTION void red_global_add_v2_f32(unsigned long long to, float a, float b) {
  add_atomically(to, a), add_atomically(to + 4, b);
}
OPB_INSTRUCTION void red_global_add_v4_f32(unsigned long long to, float a, float b, float c, float d) {
  add_atomically(to, a), add_atomically(to + 4, b), add_atomically(to + 8, c), add_atomically(to + 12, d);
}
// Each of these defines an instruction in global and in shared memory; `red` returns nothing.
#define OPB_ATOM_IN(NAME, TYPE, POINTER, WORD, AFTER)                                                         \
  template <class Result>                                                                                     \
  OPB_INSTRUCTION void NAME(Result&& result, unsigned long long to, TYPE value) {                             \
    result = update_atomically<TYPE>(address(POINTER(to)), WORD, [=](TYPE old) -> TYPE { return AFTER; });    \
  }
#define OPB_RED_IN(NAME, TYPE, POINTER, WORD, AFTER)                                                 \
  OPB_INSTRUCTION void NAME(unsigned long long to, TYPE value) {                                     \
    update_atomically<TYPE>(address(POINTER(to)), WORD, [=](TYPE old) -> TYPE { return AFTER; });    \
  }
#define OPB_SWAP_IN(NAME, TYPE, POINTER)                                                                      \
  template <class Result>                                                                                     \
  OPB_INSTRUCTION void NAME(Result&& result, unsigned long long to, TYPE compare, TYPE value) {               \
    result = update_atomically<TYPE>(address(POINTER(to)), 0,                                                 \
                                     [=](TYPE old) -> TYPE { return old == compare ? value : old; });         \
  }
#define OPB_ATOM(NAME, TYPE, WORD, AFTER)                         \
  OPB_ATOM_IN(atom_global_##NAME, TYPE, (void*), WORD, AFTER)     \
  OPB_ATOM_IN(atom_shared_##NAME, TYPE, ::opb_ptx::shared_pointer, WORD, AFTER)
#define OPB_ATOM_AND_RED(NAME, TYPE, WORD, AFTER)                 \
  OPB_ATOM(NAME, TYPE, WORD, AFTER)                               \
  OPB_RED_IN(red_global_##NAME, TYPE, (void*), WORD, AFTER)       \
  OPB_RED_IN(red_shared_##NAME, TYPE, ::opb_ptx::shared_pointer, WORD, AFTER)
#define OPB_SWAP(NAME, TYPE)                                      \
  OPB_SWAP_IN(atom_global_##NAME, TYPE, (void*))                  \
  OPB_SWAP_IN(atom_shared_##NAME, TYPE, ::opb_ptx::shared_pointer)
OPB_ATOM_AND_RED(add_u32, unsigned, OPB_COUNTS, old + value)
OPB_ATOM_AND_RED(add_s32, int, OPB_COUNTS, old + value)
OPB_ATOM_AND_RED(add_u64, unsigned long long, OPB_COUNTS, old + value)
OPB_ATOM_AND_RED(add_f32, float, OPB_COUNTS, old + value)
OPB_ATOM_AND_RED(min_u32, unsigned, 0, value < old ? value : old)
OPB_ATOM_AND_RED(min_s32, int, 0, value < old ? value : old)
OPB_ATOM_AND_RED(max_u32, unsigned, 0, value > old ? value : old)
OPB_ATOM_AND_RED(max_s32, int, 0, value > old ? value : old)
OPB_ATOM_AND_RED(and_b32, unsigned, 0, old & value)
OPB_ATOM_AND_RED(or_b32, unsigned, 0, old | value)
OPB_ATOM_AND_RED(xor_b32, unsigned, 0, old ^ value)
OPB_ATOM_AND_RED(inc_u32, unsigned, OPB_COUNTS, old >= value ? 0u : old + 1)
OPB_ATOM_AND_RED(dec_u32, unsigned, OPB_COUNTS, old == 0 || old > value ? value : old - 1)
OPB_ATOM(exch_b32, unsigned, 0, value)
OPB_ATOM(exch_b64, unsigned long long, 0, value)
OPB_SWAP(cas_b32, unsigned)
OPB_SWAP(cas_b64, unsigned long long)
template <class T>
OPB_INSTRUCTION void cvta_to_shared_u64(T& offset, unsigned long long pointer) {
  offset = (T)__cvta_generic_to_shared((const void*)pointer);
}
template <class T>
OPB_INSTRUCTION void cvta_to_shared_u64(T& offset, const void* pointer) {
  offset = (T)__cvta_generic_to_shared(pointer);
}
OPB_INSTRUCTION void prefetch_global_L1(unsigned long long) {}
OPB_INSTRUCTION void prefetch_global_L2(unsigned long long) {}

// ---- asynchronous copies
#define OPB_PTX_SITE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()
constexpr unsigned opb_all_bytes = ~0u;
template <unsigned Largest>
OPB_UNSEEN_INLINE void copy_async(unsigned long long to, unsigned long long from, unsigned bytes, unsigned valid,
                                  const char* file, unsigned line) {
  char* target = (char*)shared_pointer(to);
  if (bytes > Largest || to % bytes || from % bytes) {
    opb_trap("cp.async of a misaligned address or an illegal size", file, line);
  }
  if (valid == opb_all_bytes) valid = bytes;
  if (valid) OPB_SEE(from, valid, LOAD);
  opb_copy_async(target, (const void*)from, bytes, valid, __builtin_return_address(0));
}
#define OPB_COPY_ASYNC(NAME)                                                                  \
  OPB_INSTRUCTION void NAME(unsigned long long to, unsigned long long from, unsigned bytes,   \
                            unsigned valid = opb_all_bytes, OPB_PTX_SITE) {                   \
    copy_async<16>(to, from, bytes, valid, file, line);                                       \
  }
OPB_COPY_ASYNC(cp_async_ca_shared_global)
OPB_COPY_ASYNC(cp_async_cg_shared_global)
OPB_INSTRUCTION void cp_async_commit_group() { opb_commit_copies(); }
OPB_INSTRUCTION void cp_async_wait_group(int pending) { opb_wait_for_copies((unsigned)pending); }
OPB_INSTRUCTION void cp_async_wait_all() {
  opb_commit_copies();
  opb_wait_for_copies(0);
}

// ---- barriers and fences
OPB_CONVERGENT OPB_INSTRUCTION void bar_warp_sync(unsigned mask, OPB_PTX_SITE) { __syncwarp(mask, file, line); }
#define OPB_FENCE(NAME, WORD) \
  OPB_INSTRUCTION void NAME() { opb_fence(WORD); }
#define OPB_FENCES(NAME, WORD)                      \
  OPB_FENCE(NAME##_gpu, WORD)                       \
  OPB_FENCE(NAME##_sys, WORD)                       \
  OPB_FENCE(NAME##_cluster, WORD | OPB_CLUSTER_SCOPE) \
  OPB_FENCE(NAME##_cta, WORD | OPB_BLOCK_SCOPE)
constexpr unsigned opb_both_sides = OPB_ACQUIRES | OPB_RELEASES;
OPB_FENCE(membar_gl, opb_both_sides)
OPB_FENCE(membar_sys, opb_both_sides)
OPB_FENCE(membar_cta, opb_both_sides | OPB_BLOCK_SCOPE)
OPB_FENCES(fence_acq_rel, opb_both_sides)
OPB_FENCES(fence_sc, opb_both_sides)
OPB_FENCES(fence_acquire, OPB_ACQUIRES)
OPB_FENCES(fence_release, OPB_RELEASES)
OPB_INSTRUCTION void trap(OPB_PTX_SITE) { opb_trap("trap", file, line); }
OPB_INSTRUCTION void nanosleep_u32(unsigned) { opb_yield(); }

// ---- arithmetic
#define OPB_UNARY_F32(NAME, EXPRESSION) \
  OPB_INSTRUCTION void NAME(float& result, float a) { result = EXPRESSION; }
OPB_UNARY_F32(ex2_approx_f32, exp2f(a))
OPB_UNARY_F32(ex2_approx_ftz_f32, exp2f(a))
OPB_UNARY_F32(lg2_approx_f32, log2f(a))
OPB_UNARY_F32(lg2_approx_ftz_f32, log2f(a))
OPB_UNARY_F32(rsqrt_approx_f32, rsqrtf(a))
OPB_UNARY_F32(rsqrt_approx_ftz_f32, rsqrtf(a))
OPB_UNARY_F32(tanh_approx_f32, tanhf(a))
OPB_UNARY_F32(sin_approx_f32, sinf(a))
OPB_UNARY_F32(cos_approx_f32, cosf(a))
OPB_INSTRUCTION void prmt_b32(unsigned& result, unsigned a, unsigned b, unsigned c) { result = __byte_perm(a, b, c); }

// tf32 keeps 10 digits; .rna rounds halves away from zero.
template <class T>
OPB_INSTRUCTION void cvt_rna_tf32_f32(T& result, float a) {
  unsigned bits = opb_bit_cast<unsigned>(a);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits += 0x1000u;
  result = opb_bit_cast<T>(bits & 0xffffe000u);
}

}  // namespace opb_ptx

#include "tensor.hpp"
#include "logic.hpp"
#include "asynchronous.hpp"
