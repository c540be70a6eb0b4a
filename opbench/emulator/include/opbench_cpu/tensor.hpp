// Implements ldmatrix, stmatrix and mma.sync: each lane reads the fragments of the other lanes of its warp.
#pragma once
#include "float16.hpp"

namespace opb_ptx {

// Never inlined: unrolled code calls them hundreds of times, and inlining would take seconds per kernel.
#define OPB_WARP_WIDE __attribute__((noinline)) OPB_INSTRUCTION

// Lane l of matrix m gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, whose address lane 8 m + l / 4 gave.
template <int Matrices, bool Transposed>
OPB_UNSEEN_INLINE void load_matrices(unsigned* registers, unsigned long long row, const char* file, unsigned line) {
  if (opb_lane_id() < Matrices * 8) OPB_SEE(shared_pointer(row), 16, LOAD);
  void* const* rows = opb_share_pointers(shared_pointer(row), file, line);
  unsigned lane = opb_lane_id(), result[Matrices];
  for (int matrix = 0; matrix < Matrices; ++matrix) {
    void* const* own = rows + matrix * 8;
    if (Transposed) {
      unsigned low = ((const unsigned short*)own[lane % 4 * 2])[lane / 4];
      unsigned high = ((const unsigned short*)own[lane % 4 * 2 + 1])[lane / 4];
      result[matrix] = low | high << 16;
    } else {
      result[matrix] = ((const unsigned*)own[lane / 4])[lane % 4];
    }
  }
  opb_warp(opb_full_mask, OPB_WARP_MATRIX, 0, 0, file, line);
  __builtin_memcpy(registers, result, sizeof result);
}

template <int Matrices, bool Transposed>
OPB_UNSEEN_INLINE void store_matrices(const unsigned* registers, unsigned long long row, const char* file,
                                      unsigned line) {
  if (opb_lane_id() < Matrices * 8) OPB_SEE(shared_pointer(row), 16, STORE);
  void* const* rows = opb_share_pointers(shared_pointer(row), file, line);
  unsigned lane = opb_lane_id();
  for (int matrix = 0; matrix < Matrices; ++matrix) {
    void* const* own = rows + matrix * 8;
    if (Transposed) {
      ((unsigned short*)own[lane % 4 * 2])[lane / 4] = (unsigned short)registers[matrix];
      ((unsigned short*)own[lane % 4 * 2 + 1])[lane / 4] = (unsigned short)(registers[matrix] >> 16);
    } else {
      ((unsigned*)own[lane / 4])[lane % 4] = registers[matrix];
    }
  }
  opb_warp(opb_full_mask, OPB_WARP_MATRIX, 0, 0, file, line);
}

#define OPB_MATRIX_MOVES(SUFFIX, TRANSPOSED)                                                                           \
  OPB_WARP_WIDE void ldmatrix_sync_aligned_m8n8_x1##SUFFIX(unsigned& a, unsigned long long row, OPB_PTX_SITE) {        \
    load_matrices<1, TRANSPOSED>(&a, row, file, line);                                                                 \
  }                                                                                                                    \
  OPB_WARP_WIDE void ldmatrix_sync_aligned_m8n8_x2##SUFFIX(unsigned& a, unsigned& b, unsigned long long row,           \
                                                           OPB_PTX_SITE) {                                             \
    unsigned all[2];                                                                                                   \
    load_matrices<2, TRANSPOSED>(all, row, file, line);                                                                \
    a = all[0], b = all[1];                                                                                            \
  }                                                                                                                    \
  OPB_WARP_WIDE void ldmatrix_sync_aligned_m8n8_x4##SUFFIX(unsigned& a, unsigned& b, unsigned& c, unsigned& d,         \
                                                           unsigned long long row, OPB_PTX_SITE) {                     \
    unsigned all[4];                                                                                                   \
    load_matrices<4, TRANSPOSED>(all, row, file, line);                                                                \
    a = all[0], b = all[1], c = all[2], d = all[3];                                                                    \
  }                                                                                                                    \
  OPB_WARP_WIDE void stmatrix_sync_aligned_m8n8_x1##SUFFIX(unsigned long long row, unsigned a, OPB_PTX_SITE) {         \
    store_matrices<1, TRANSPOSED>(&a, row, file, line);                                                                \
  }                                                                                                                    \
  OPB_WARP_WIDE void stmatrix_sync_aligned_m8n8_x2##SUFFIX(unsigned long long row, unsigned a, unsigned b,             \
                                                           OPB_PTX_SITE) {                                             \
    unsigned all[] = {a, b};                                                                                           \
    store_matrices<2, TRANSPOSED>(all, row, file, line);                                                               \
  }                                                                                                                    \
  OPB_WARP_WIDE void stmatrix_sync_aligned_m8n8_x4##SUFFIX(unsigned long long row, unsigned a, unsigned b, unsigned c, \
                                                           unsigned d, OPB_PTX_SITE) {                                 \
    unsigned all[] = {a, b, c, d};                                                                                     \
    store_matrices<4, TRANSPOSED>(all, row, file, line);                                                               \
  }
OPB_MATRIX_MOVES(_shared_b16, false)
OPB_MATRIX_MOVES(_trans_shared_b16, true)

// ---- mma.sync: the runtime multiplies, so that the product is not compiled with each kernel
#define OPB_MMA_4_2(NAME, TYPE, K, SUM, WORD) OPB_MMA_MIXED(NAME, TYPE, TYPE, K, SUM, WORD)
#define OPB_MMA_MIXED(NAME, LEFT, RIGHT, K, SUM, WORD)                                                              \
  OPB_WARP_WIDE void NAME(SUM& d0, SUM& d1, SUM& d2, SUM& d3, WORD a0, WORD a1, WORD a2, WORD a3, WORD b0, WORD b1, \
                          SUM c0, SUM c1, SUM c2, SUM c3, OPB_PTX_SITE) {                                           \
    unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};                                                                \
    SUM sums[] = {c0, c1, c2, c3};                                                                                  \
    opb_multiply(LEFT, RIGHT, K, sums, a, b, file, line);                                                           \
    d0 = sums[0], d1 = sums[1], d2 = sums[2], d3 = sums[3];                                                         \
  }
#define OPB_MMA_2_1(NAME, TYPE, K)                                                                                     \
  OPB_WARP_WIDE void NAME(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned b0, float c0, \
                          float c1, float c2, float c3, OPB_PTX_SITE) {                                                \
    unsigned a[] = {a0, a1}, b[] = {b0};                                                                               \
    float sums[] = {c0, c1, c2, c3};                                                                                   \
    opb_multiply(TYPE, TYPE, K, sums, a, b, file, line);                                                                     \
    d0 = sums[0], d1 = sums[1], d2 = sums[2], d3 = sums[3];                                                            \
  }
OPB_MMA_4_2(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, OPB_F16, 16, float, unsigned)
OPB_MMA_4_2(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, OPB_BF16, 16, float, unsigned)
OPB_MMA_4_2(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, OPB_TF32, 8, float, unsigned)
OPB_MMA_4_2(mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32, OPB_S8, 32, int, unsigned)
OPB_MMA_4_2(mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e4m3_f32, OPB_E4M3, 32, float, unsigned)
OPB_MMA_4_2(mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e5m2_f32, OPB_E5M2, 32, float, unsigned)
OPB_MMA_MIXED(mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e5m2_f32, OPB_E4M3, OPB_E5M2, 32, float, unsigned)
OPB_MMA_MIXED(mma_sync_aligned_m16n8k32_row_col_f32_e5m2_e4m3_f32, OPB_E5M2, OPB_E4M3, 32, float, unsigned)
OPB_MMA_2_1(mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32, OPB_F16, 8)
OPB_MMA_2_1(mma_sync_aligned_m16n8k8_row_col_f32_bf16_bf16_f32, OPB_BF16, 8)
OPB_MMA_2_1(mma_sync_aligned_m16n8k4_row_col_f32_tf32_tf32_f32, OPB_TF32, 4)

OPB_UNSEEN_INLINE void widen_pair(unsigned halves, float* into) {
  for (int i = 0; i < 2; ++i) into[i] = opb_half_format::widen((unsigned short)(halves >> (16 * i)));
}
OPB_WARP_WIDE void mma_sync_aligned_m16n8k16_row_col_f16_f16_f16_f16(unsigned& d0, unsigned& d1, unsigned a0,
                                                                     unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                                                     unsigned b1, unsigned c0, unsigned c1,
                                                                     OPB_PTX_SITE) {
  unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
  float sums[4];
  widen_pair(c0, sums), widen_pair(c1, sums + 2);
  opb_multiply(OPB_F16, OPB_F16, 16, sums, a, b, file, line);
  d0 = opb_half_format::narrow(sums[0]) | (unsigned)opb_half_format::narrow(sums[1]) << 16;
  d1 = opb_half_format::narrow(sums[2]) | (unsigned)opb_half_format::narrow(sums[3]) << 16;
}

OPB_WARP_WIDE void mma_sync_aligned_m16n8k8_row_col_f16_f16_f16_f16(unsigned& d0, unsigned& d1, unsigned a0,
                                                                    unsigned a1, unsigned b0, unsigned c0, unsigned c1,
                                                                    OPB_PTX_SITE) {
  unsigned a[] = {a0, a1}, b[] = {b0};
  float sums[4];
  widen_pair(c0, sums), widen_pair(c1, sums + 2);
  opb_multiply(OPB_F16, OPB_F16, 8, sums, a, b, file, line);
  d0 = opb_half_format::narrow(sums[0]) | (unsigned)opb_half_format::narrow(sums[1]) << 16;
  d1 = opb_half_format::narrow(sums[2]) | (unsigned)opb_half_format::narrow(sums[3]) << 16;
}
OPB_WARP_WIDE void mma_sync_aligned_m16n8k16_row_col_s32_s8_s8_s32(int& d0, int& d1, int& d2, int& d3, unsigned a0,
                                                                   unsigned a1, unsigned b0, int c0, int c1, int c2,
                                                                   int c3, OPB_PTX_SITE) {
  unsigned a[] = {a0, a1}, b[] = {b0};
  int sums[] = {c0, c1, c2, c3};
  opb_multiply(OPB_S8, OPB_S8, 16, sums, a, b, file, line);
  d0 = sums[0], d1 = sums[1], d2 = sums[2], d3 = sums[3];
}

}  // namespace opb_ptx
