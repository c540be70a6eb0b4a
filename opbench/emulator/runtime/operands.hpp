// Reads the operands of wgmma: the layouts of matrix descriptors, and the conversion of elements to float. Also defines
// the state of pending products.
#pragma once
#include "../include/opbench_cpu/formats.hpp"
#include "tensor_map.hpp"

static constexpr uint32_t type_bytes(opb_type type) {
  return type == OPB_TF32 || type == OPB_F32 ? 4 : type == OPB_E4M3 || type == OPB_E5M2 || type == OPB_S8 ? 1 : 2;
}

// Returns the offset of element (row, k) of an operand, for the PTX ISA's canonical layouts and any other offsets.
static uint32_t element_address(uint64_t descriptor, bool k_major, uint32_t row, uint32_t k, uint32_t bytes) {
  const uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4, stride = (uint32_t)(descriptor >> 32 & 0x3fff)
                                                                                << 4;
  const uint32_t mode = (uint32_t)(descriptor >> 62), span = mode ? 256u >> mode : 16, per_span = span / bytes;
  uint32_t address = (uint32_t)(descriptor & 0x3fff) << 4;
  if (k_major) {
    address += row / 8 * stride + row % 8 * span + (mode ? k * bytes : k * bytes / 16 * leading + k * bytes % 16);
  } else {  // a span of rows, with 8 values of k below each other; without a swizzle the two offsets swap their roles
    address += row / per_span * (mode ? leading : stride) + row % per_span * bytes + k / 8 * (mode ? stride : leading) +
               k % 8 * span;
  }
  return mode ? swizzled(address, span, (uint32_t)(descriptor >> 49) & 7) : address;
}

struct Operand {
  uint64_t descriptor;
  opb_type type;
  uint32_t rows, k;
  bool k_major;
};
static Operand left_operand(const opb_product& made) {
  return {made.a, made.a_type, made.a_in_registers ? 0u : 64u, made.k, !made.a_transposed};
}
static Operand right_operand(const opb_product& made) {
  return {made.b, made.b_type, made.n, made.k, !made.b_transposed};
}

// Calls visit(offset, row, k) for every 16 bytes, with row and k of their first element.
template <class Visit>
static void for_each_16_bytes_of(const Operand& operand, Visit visit) {
  const uint32_t bytes = type_bytes(operand.type), per_piece = 16 / bytes;
  for (uint32_t row = 0; row < operand.rows; row += operand.k_major ? 1 : per_piece) {
    for (uint32_t k = 0; k < operand.k; k += operand.k_major ? per_piece : 1) {
      visit(element_address(operand.descriptor, operand.k_major, row, k, bytes), row, k);
    }
  }
}

static float widen_small(uint32_t bits, uint32_t exponent_bits,
                         uint32_t digits) {  // converts a short float format without infinities
  const uint32_t bias = (1u << (exponent_bits - 1)) - 1, exponent = bits >> digits & ((1u << exponent_bits) - 1);
  const uint32_t fraction = bits & ((1u << digits) - 1);
  const float scale = opb_bit_cast<float>((127 - bias - digits + (exponent ? exponent : 1)) << 23);
  const float size = (float)(exponent ? fraction | 1u << digits : fraction) * scale;
  return bits >> (exponent_bits + digits) & 1 ? -size : size;
}

static float decode(const char* from, opb_type type) {
  uint32_t bits = 0;
  memcpy(&bits, from, type_bytes(type));
  switch (type) {
    case OPB_BF16:
      return opb_bit_cast<float>(bits << 16);
    case OPB_TF32:
      return opb_bit_cast<float>(bits & 0xffffe000u);  // the tensor core ignores the other bits
    case OPB_F16:
      return opb_half_format::widen((unsigned short)bits);
    case OPB_E5M2:
      if ((bits & 0x7cu) == 0x7cu) return opb_bit_cast<float>((bits & 0x80u) << 24 | 0x7f800000u | (bits & 3u) << 21);
      return widen_small(bits, 5, 2);
    case OPB_S8:
      return (float)(int8_t)bits;
    default:
      return (bits & 0x7fu) == 0x7fu ? opb_bit_cast<float>(0x7fc00000u) : widen_small(bits, 4, 3);
  }
}

// Converts an operand to floats in [k][row] order, so that the inner loop of a product runs along rows.
static void decode_operand(Worker* worker, const Operand& operand, float* into) {
  const uint32_t bytes = type_bytes(operand.type), per_piece = 16 / bytes;
  const uint32_t room = (uint32_t)worker->shared_bytes;
  for_each_16_bytes_of(operand, [&](uint32_t offset, uint32_t row, uint32_t k) {
    const char* from = worker->shared_base + offset;
    for (uint32_t i = 0; i < per_piece; ++i) {
      const uint32_t r = operand.k_major ? row : row + i, c = operand.k_major ? k + i : k;
      into[c * operand.rows + r] = offset + 16 <= room ? decode(from + i * bytes, operand.type) : 0.0f;
    }
  });
}

// ---- pending products

// The accumulators of a warpgroup's products, from the first issued product until the last thread has waited.
struct Accumulators {
  uint32_t n, holders;  // columns; threads whose registers are still poisoned
  bool half;            // whether a register contains two f16
  float tile[64 * 256];
};

struct Product {
  opb_product made;
  Accumulators* sums;
  uint32_t group, site, issued, waited, async_read;
  bool executed;
  uint32_t a_registers[kGroupThreads][4];
};

// The registers of one thread that pending products use. `places` is set only if they are not contiguous.
struct ProductRegisters {
  float* first;
  float** places;
  Accumulators* sums;
  uint32_t count, products, site;
};

// Registers that no pending product uses. If the thread accesses them, the next wgmma on them needs a wgmma.fence.
struct FreedRegisters {
  ProductRegisters held;
  uint64_t content;
  bool touched, fenced;
};

struct GroupThread {
  uint32_t issued, waited, groups;  // the numbers of products issued, products waited for, and groups
  bool fenced;
  List<ProductRegisters> held;
  List<FreedRegisters> returned;
};

struct Warpgroup {
  List<Product*> products;  // numbered from `first` on
  uint32_t first;
  GroupThread threads[kGroupThreads];
};

// Reports a copy that overwrites an operand that a product or bulk store still reads.
static void check_products_in(Worker* owner, const Bulk& copy, Worker* worker) {
  const uint32_t end = copy.shared + footprint(copy);
  for (Warpgroup* group : owner->events->groups) {
    for (uint32_t index = 0; group && index < group->products.count; ++index) {
      const Product* product = group->products[index];
      if (product->waited) continue;
      bool hit = false;
      const auto look = [&](uint32_t offset, uint32_t, uint32_t) { hit |= offset >= copy.shared && offset < end; };
      for_each_16_bytes_of(left_operand(product->made), look);
      for_each_16_bytes_of(right_operand(product->made), look);
      if (!hit) continue;
      report_at(
          worker, kReportEarlyOverwrite, copy.site,
          "this copy overwrites what the wgmma at @%x@ still reads: the stage was given back before wgmma.wait_group",
          product->site);
      return;
    }
  }
  for (const Bulk& store : owner->events->stores) {
    if (copy.shared >= store.shared + footprint(store) || end <= store.shared) continue;
    report_at(worker, kReportEarlyOverwrite, copy.site,
              "this copy overwrites what the store at @%x@ still reads: its thread has not waited by wait_group.read",
              store.site);
    return;
  }
}
