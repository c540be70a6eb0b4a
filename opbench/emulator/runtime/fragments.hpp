// Implements mma.sync: a warp multiplies 16 x K by K x 8 matrices in the registers of its lanes.
//
// Element (row, k) of A lies in lane 4 (row % 8) + k' / E, and (k, column) of B in 4 column + k' / E, where E elements
// share a register and k' = k % 4E; registers follow rows first, then k. Each lane converts its own elements once. Both
// types have the same size: `b_type` is another one for 8-bit floats only.
#pragma once
#include "operands.hpp"
#include "warp.hpp"

static inline void widen(const char* from, opb_type type, float* into) { *into = decode(from, type); }
static inline void widen(const char* from, opb_type, int32_t* into) { *into = *(const int8_t*)from; }

template <opb_type type, class Sum>
static void multiply_fragments(Worker* worker, uint32_t depth, Sum* sums, const uint32_t* a, const uint32_t* b,
                               opb_type b_type, Site site) {
  constexpr uint32_t bytes = type_bytes(type), E = 4 / bytes;
  struct Fragments {
    Sum a[4 * E], b[2 * E];
  } own;
  for (uint32_t i = 0; i < depth / 2; ++i) widen((const char*)a + i * bytes, type, &own.a[i]);
  for (uint32_t i = 0; i < depth / 4; ++i) widen((const char*)b + i * bytes, b_type, &own.b[i]);
  const uint32_t lane = worker->current % kLanes, column = lane % 4 * 2;
  void* const* lanes = share_pointers(worker, &own, site);
  for (uint32_t k = 0; k < depth; k += E) {
    const uint32_t within = k / E % 4, step = k / (4 * E);
    const auto of = [&](uint32_t first) { return (const Fragments*)lanes[first * 4 + within]; };
    const Sum* left = of(lane / 4)->a + 2 * step * E;
    const Sum *even = of(column)->b + step * E, *odd = of(column + 1)->b + step * E;
    for (uint32_t i = 0; i < E; ++i) {
      sums[0] += left[i] * even[i], sums[1] += left[i] * odd[i];
      sums[2] += left[E + i] * even[i], sums[3] += left[E + i] * odd[i];
    }
  }
  warp_operation(worker, ~0u, OPB_WARP_MATRIX, 0, 0, site);
}
