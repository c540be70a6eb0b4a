// Implements wgmma: a warpgroup multiplies matrices in shared memory and adds to registers of its threads.
//
// A wgmma is one instruction of four warps: it runs when all have issued it and one of them waits, or earlier at random
// with a seed. Until a thread has waited, its accumulator registers contain NaN, and an access to them is reported.
#pragma once
#include "bulk.hpp"

constexpr uint32_t kPoison = 0x7fbadbad;  // a NaN that no arithmetic produces

// ---- execution

// Converts operand A in registers to floats. The 16 rows of each warp have the layout of mma.sync.
static void decode_registers(const Product& product, float* into) {
  const uint32_t bytes = type_bytes(product.made.a_type), per = 4 / bytes;
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t k = 0; k < product.made.k; ++k) {
      const uint32_t thread = row / 16 * 32 + row % 8 * 4 + k % (4 * per) / per;
      const uint32_t* word = &product.a_registers[thread][row % 16 / 8 + 2 * (k / (4 * per))];
      into[k * 64 + row] = decode((const char*)word + k % per * bytes, product.made.a_type);
    }
  }
}

typedef float Eight __attribute__((vector_size(32), aligned(4)));
typedef int32_t EightWhole __attribute__((vector_size(32), aligned(4), may_alias));

// Adds products of whole numbers, which float represents, to sums of 32 bits, which it does not.
static void add_integer_products(const opb_product& made, const float* left, const float* right, float* tile) {
  for (uint32_t row = 0; row < 64; ++row) {
    char* sums = (char*)(tile + row * made.n);
    if (!made.add) memset(sums, 0, made.n * sizeof(int32_t));
    for (uint32_t k = 0; k < made.k; ++k) {
      const int32_t factor = (int32_t)left[k * 64 + row];
      for (uint32_t column = 0; column < made.n; column += 8) {
        const Eight other = *(const Eight*)(right + k * made.n + column);
        *(EightWhole*)(sums + column * sizeof(int32_t)) += factor * __builtin_convertvector(other, EightWhole);
      }
    }
  }
}

static void execute(Worker* worker, Product* product) {
  float *left = worker->events->left, *right = worker->events->right;
  const opb_product& made = product->made;
  const uint32_t n = made.n;
  if (made.a_in_registers) {
    decode_registers(*product, left);
  } else {
    decode_operand(worker, left_operand(made), left);
  }
  decode_operand(worker, right_operand(made), right);
  if (made.a_type == OPB_S8) add_integer_products(made, left, right, product->sums->tile);
  const float sign = (float)(made.scale_a * made.scale_b);
  for (uint32_t row = 0; row < 64 && made.a_type != OPB_S8; ++row) {
    float* sums = product->sums->tile + row * n;
    if (!made.add) memset(sums, 0, n * sizeof(float));
    for (uint32_t k = 0; k < made.k; ++k) {
      const float one = left[k * 64 + row] * sign;
      const Eight factor = {one, one, one, one, one, one, one, one};
      for (uint32_t column = 0; column < n; column += 8) {
        *(Eight*)(sums + column) += factor * *(const Eight*)(right + k * n + column);
      }
    }
  }
  for (uint32_t index = 0; made.half_sums && index < 64 * n; ++index) {
    float& sum = product->sums->tile[index];
    sum = opb_half_format::widen(opb_half_format::narrow(sum));
  }
  product->executed = true;
  end_async_read(worker, product->async_read);
}

// ---- registers

static inline float* register_of(const ProductRegisters& held, uint32_t index) {
  return held.places ? held.places[index] : held.first + index;
}

// Returns the place of accumulator `index` of a thread in the 64 x n tile.
static inline float* accumulator_of(Accumulators* sums, uint32_t thread, uint32_t index) {
  const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + index / 2 % 2 * 8;
  const uint32_t column = index / 4 * 8 + thread % 4 * 2 + index % 2;
  return sums->tile + row * sums->n + column;
}

// Moves accumulators between registers and the tile, and poisons the registers meanwhile.
static void read_register_into_tile(Accumulators* sums, uint32_t thread, uint32_t index, float* place) {
  if (sums->half) {
    unsigned short halves[2];
    memcpy(halves, place, 4);
    for (uint32_t i = 0; i < 2; ++i) *accumulator_of(sums, thread, 2 * index + i) = opb_half_format::widen(halves[i]);
  } else {
    *accumulator_of(sums, thread, index) = *place;
  }
  memcpy(place, &kPoison, 4);
}
static void write_register_from_tile(Accumulators* sums, uint32_t thread, uint32_t index, float* place) {
  if (sums->half) {
    unsigned short halves[2];
    for (uint32_t i = 0; i < 2; ++i) halves[i] = opb_half_format::narrow(*accumulator_of(sums, thread, 2 * index + i));
    memcpy(place, halves, 4);
  } else {
    *place = *accumulator_of(sums, thread, index);
  }
}

static ProductRegisters registers_of_product(const opb_product& made, float* const* places) {
  const uint32_t count = made.n / (made.half_sums ? 4 : 2);
  ProductRegisters held = {places[0], nullptr, nullptr, count, 0, 0};
  for (uint32_t index = 1; index < count; ++index) {
    if (places[index] == places[0] + index) continue;
    held.places = (float**)allocate_zeros(count * sizeof(float*));
    memcpy(held.places, places, count * sizeof(float*));
    break;
  }
  return held;
}

static ProductRegisters* find_product_registers(List<ProductRegisters>& list, float* first) {
  for (ProductRegisters& held : list) {
    if (held.first == first) return &held;
  }
  return nullptr;
}

static bool is_in_registers(const ProductRegisters& held, uintptr_t address, uint32_t bytes) {
  if (!held.places) return address + bytes > (uintptr_t)held.first && address < (uintptr_t)(held.first + held.count);
  for (uint32_t index = 0; index < held.count; ++index) {
    if (address + bytes > (uintptr_t)held.places[index] && address < (uintptr_t)(held.places[index] + 1)) return true;
  }
  return false;
}

static uint64_t content_of(const ProductRegisters& held) {
  uint64_t content = 0;
  for (uint32_t index = 0; index < held.count; ++index) {
    uint32_t bits;
    memcpy(&bits, register_of(held, index), 4);
    content = content * 0x100000001b3ull + bits;
  }
  return content;
}

static Warpgroup* own_group(Worker* worker) {
  Warpgroup*& group = worker->events->groups[worker->current / kGroupThreads];
  if (!group) group = (Warpgroup*)allocate_zeros(sizeof(Warpgroup));
  return group;
}

// Traced builds: checks whether an access to a thread's own memory touches a register that a pending wgmma uses.
static void check_register_access(Worker* worker, uintptr_t address, uint32_t bytes, uint32_t access, uint32_t site) {
  GroupThread* own = &own_group(worker)->threads[worker->current % kGroupThreads];
  for (const ProductRegisters& held : own->held) {
    if (!is_in_registers(held, address, bytes)) continue;
    report_at(worker, kReportTouchedSums, site, "%s sums of the wgmma at @%x@, which nobody has waited for",
              access == OPB_ACCESS_LOAD ? "reads" : "writes", held.site);
  }
  for (FreedRegisters& returned : own->returned) {
    if (!is_in_registers(returned.held, address, bytes)) continue;
    returned.touched = true;
    returned.fenced = false;
  }
}

// Returns whether the thread has accessed these registers without a wgmma.fence before the wgmma that uses them.
static bool lacks_fence(GroupThread* own, const ProductRegisters& taken) {
  for (uint32_t index = 0; index < own->returned.count; ++index) {
    FreedRegisters& returned = own->returned[index];
    if (returned.held.first != taken.first || returned.held.count != taken.count) continue;
    bool touched = returned.touched || content_of(taken) != returned.content, fenced = returned.fenced;
    free(returned.held.places);
    own->returned.remove(index);
    return touched && !fenced;
  }
  return !own->fenced;
}

// ---- issue and wait

static void check_operand(Worker* worker, const Operand& operand, const char* which, uint32_t site,
                          uint32_t async_read) {
  bool reported = false, traced = worker->trace && worker->trace->races;
  const bool loads = worker->events->loads.count;
  for_each_16_bytes_of(operand, [&](uint32_t offset, uint32_t, uint32_t) {
    if (reported) return;
    if (shared_bytes_from(worker, offset) < 16) {
      report_at(worker, kReportBeyondShared, site,
                "the descriptor of %s leads to byte %d of shared memory; the launch asks for %u", which,
                reported_offset(worker, offset), worker->launch->shared_bytes);
      abandon_launch(worker);
    }
    if (loads) reported = check_loads_in(worker, offset, "this wgmma", site);
    if (!reported && traced) check_async_read(worker, offset, 16, site, async_read);
  });
}

static bool same_product(const opb_product& left, const opb_product& right) {
  return left.n == right.n && left.k == right.k && left.a_type == right.a_type && left.b == right.b &&
         left.half_sums == right.half_sums && left.add == right.add && (left.a_in_registers || left.a == right.a);
}

static void forget_products(Warpgroup* group) {
  while (group->products.count && group->products[0]->waited == kGroupThreads) {
    free(group->products[0]);
    group->products.remove(0);
    ++group->first;
  }
}

static void deliver(Worker* worker, GroupThread* own, uint32_t index) {
  ProductRegisters held = own->held[index];
  own->held.remove(index);
  uint32_t thread = worker->current % kGroupThreads;
  bool kept = true;
  for (uint32_t i = 0; i < held.count; ++i) {
    float* place = register_of(held, i);
    kept = kept && memcmp(place, &kPoison, 4) == 0;
    write_register_from_tile(held.sums, thread, i, place);
  }
  if (!kept) {
    report_at(worker, kReportUnfinishedProduct, held.site,
              "sums of this wgmma were written before its thread waited for them");
  }
  if (--held.sums->holders == 0) free(held.sums);
  held.sums = nullptr;
  own->returned.add({held, content_of(held), false, false});
}

extern "C" {

void opb_product_fence(void) {
  Worker* worker = enter_event();
  GroupThread* own = &own_group(worker)->threads[worker->current % kGroupThreads];
  own->fenced = true;
  for (FreedRegisters& returned : own->returned) returned.fenced = true;
}

void opb_product_issue(const opb_product* made, float* const* places, const void* at) {
  Worker* worker = enter_event();
  uint32_t site = site_of(worker, at), self = worker->current, thread = self % kGroupThreads;
  if (worker->threads - self / kGroupThreads * kGroupThreads < kGroupThreads) {
    report_at(worker, kReportPartialWarp, site,
              "wgmma needs a whole warpgroup of 128 threads; the block has %u threads", worker->threads);
    abandon_launch(worker);
  }
  worker->uses_wgmma = true;
  set_access_filter(worker);
  Warpgroup* group = own_group(worker);
  GroupThread* own = &group->threads[thread];
  uint32_t number = own->issued++;
  bool fresh = number - group->first == group->products.count;
  if (fresh) {
    Product* product = (Product*)allocate_zeros(sizeof(Product));
    product->made = *made;
    product->group = own->groups;
    product->site = site;
    product->async_read = new_async_read(worker, site);
    count_operands(worker, site, ((made->a_in_registers ? 0 : 64) + made->n) * made->k * type_bytes(made->a_type));
    group->products.add(product);
  }
  Product* product = group->products[number - group->first];
  if (!same_product(product->made, *made)) {
    report_at(worker, kReportDifferentProducts, site,
              "threads of a warpgroup execute different wgmma here: another shape, "
              "descriptor or scale than the first to come, at @%x@",
              product->site);
    abandon_launch(worker);
  }
  ProductRegisters* held = find_product_registers(own->held, places[0]);
  if (!held) {
    ProductRegisters taken = registers_of_product(*made, places);
    if (lacks_fence(own, taken)) {
      report_at(worker, kReportMissingFence, site,
                "no wgmma.fence since the registers of this wgmma were last touched");
    }
    taken.sums = product->sums;
    if (!taken.sums) {
      taken.sums = (Accumulators*)allocate_zeros(sizeof(Accumulators));
      taken.sums->n = made->n;
      taken.sums->holders = kGroupThreads;
    }
    taken.sums->half = made->half_sums;
    for (uint32_t i = 0; i < taken.count; ++i) {
      read_register_into_tile(taken.sums, thread, i, register_of(taken, i));
    }
    held = &own->held.add(taken);
  }
  if (!product->sums) product->sums = held->sums;
  if (product->sums != held->sums || held->sums->n != made->n || held->sums->half != made->half_sums) {
    report_at(worker, kReportDifferentProducts, site,
              "the registers of this wgmma are in the hands of another, at @%x@, of "
              "another shape or in another order",
              held->site);
    abandon_launch(worker);
  }
  ++held->products;
  held->site = site;
  if (made->a_in_registers) memcpy(product->a_registers[thread], made->a_registers, sizeof made->a_registers);
  if (thread % kLanes == 0) {  // the warps issue the wgmma one by one
    check_operand(worker, left_operand(*made), "a", site, product->async_read);
    check_operand(worker, right_operand(*made), "b", site, product->async_read);
  }
  if (++product->issued < kGroupThreads) return;
  count_progress(worker);
  wake_all(worker, kWaitProduct, self / kGroupThreads);
  if (!at_random(worker, 4)) return;
  for (Product* earlier : group->products) {
    if (!earlier->executed && earlier->issued == kGroupThreads) execute(worker, earlier);
  }
}

// `.sync.aligned`: all lanes of the warp execute the instruction together.
void opb_product_commit(const char* file, unsigned line) {
  Worker* worker = enter_event();
  opb_warp(~0u, OPB_WARP_BALLOT, 0, 0, file, line);
  ++own_group(worker)->threads[worker->current % kGroupThreads].groups;
}

void opb_product_wait(unsigned pending, const char* file, unsigned line, const void* at) {
  Worker* worker = enter_event();
  uint32_t site = site_of(worker, at), self = worker->current, thread = self % kGroupThreads;
  Warpgroup* group = own_group(worker);
  GroupThread* own = &group->threads[thread];
  uint32_t end = own->waited;
  while (end < own->issued && group->products[end - group->first]->group + pending < own->groups) ++end;
  for (uint32_t number = own->waited; number < end; ++number) {
    Product* product = group->products[number - group->first];
    while (product->issued < kGroupThreads) park(worker, {kWaitProduct, self / kGroupThreads, 0, site});
    if (!product->executed) execute(worker, product);
    ++product->waited;
    for (uint32_t index = own->held.count; index-- > 0;) {
      ProductRegisters* held = &own->held[index];
      if (held->sums == product->sums && --held->products == 0) deliver(worker, own, index);
    }
  }
  own->waited = end;
  forget_products(group);
  opb_warp(~0u, OPB_WARP_BALLOT, 0, 0, file, line);
}
}

// Called at the end of a block: reports products that no thread has waited for, and frees the state.
static void end_products(Worker* worker) {
  worker->uses_wgmma = false;
  set_access_filter(worker);
  for (Warpgroup* group : worker->events->groups) {
    if (!group) continue;
    for (Product* product : group->products) {
      if (product->waited < kGroupThreads && !worker->aborted) {
        report_at(worker, kReportUnfinishedProduct, product->site,
                  "the block ends before all threads have waited for this wgmma");
      }
      end_async_read(worker, product->async_read);
      free(product);
    }
    group->products.clear();
    group->first = 0;
    for (GroupThread& thread : group->threads) {
      for (ProductRegisters& held : thread.held) {
        free(held.places);
        if (--held.sums->holders == 0) free(held.sums);
      }
      for (FreedRegisters& returned : thread.returned) free(returned.held.places);
      thread.held.clear(), thread.returned.clear();
      thread.issued = thread.waited = thread.groups = 0;
      thread.fenced = false;
    }
  }
}
