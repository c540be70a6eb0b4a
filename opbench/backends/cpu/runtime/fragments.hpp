// mma.sync: a warp multiplies what its lanes hold in registers, 16 x K by K x 8.
//
// Element (row, k) of A lies in lane 4 (row % 8) + k' / E, and (k, column) of B in 4 column + k' / E, where E elements share
// a register and k' = k % 4E; registers follow rows first, then k. Each lane widens its own elements once.
#pragma once
#include "operands.hpp"
#include "warp.hpp"

struct HalfElement {
  static constexpr int per_register = 2;
  using Sum = float;
  static float read(uint32_t word, int part) { return opb_half_format::widen((unsigned short)(word >> (16 * part))); }
};
struct BfloatElement {
  static constexpr int per_register = 2;
  using Sum = float;
  static float read(uint32_t word, int part) {
    return opb_bfloat_format::widen((unsigned short)(word >> (16 * part)));
  }
};
struct Tf32Element {
  static constexpr int per_register = 1;
  using Sum = float;
  static float read(uint32_t word, int) { return opb_bit_cast<float>(word & 0xffffe000u); }
};
struct ByteElement {
  static constexpr int per_register = 4;
  using Sum = int32_t;
  static int32_t read(uint32_t word, int part) { return (int8_t)(word >> (8 * part)); }
};

template <class Element, int K>
static void multiply_fragments(Worker* worker, typename Element::Sum* sums, const uint32_t* a, const uint32_t* b,
                               Site site) {
  constexpr int E = Element::per_register;
  struct Fragments {
    typename Element::Sum a[K / 2], b[K / 4];
  } own;
  for (int i = 0; i < K / 2; ++i) own.a[i] = Element::read(a[i / E], i % E);
  for (int i = 0; i < K / 4; ++i) own.b[i] = Element::read(b[i / E], i % E);
  const uint32_t self = worker->current, lane = self % kLanes;
  void* const* lanes = &worker->pointers[self - lane];
  worker->pointers[self] = &own;
  warp_operation(worker, ~0u, OPB_WARP_SYNC, 0, 0, site);
  const auto fragments = [&](uint32_t of) { return (const Fragments*)lanes[of]; };
  for (int k = 0; k < K; k += E) {
    const uint32_t within = k / E % 4;
    const typename Element::Sum* left = fragments(lane / 4 * 4 + within)->a + k / (4 * E) * 2 * E;
    const uint32_t column = lane % 4 * 2;
    const typename Element::Sum* first = fragments(column * 4 + within)->b + k / (4 * E) * E;
    const typename Element::Sum* second = fragments(column * 4 + 4 + within)->b + k / (4 * E) * E;
    for (int i = 0; i < E; ++i) {
      sums[0] += left[i] * first[i], sums[1] += left[i] * second[i];
      sums[2] += left[E + i] * first[i], sums[3] += left[E + i] * second[i];
    }
  }
  warp_operation(worker, ~0u, OPB_WARP_SYNC, 0, 0, site);
}
