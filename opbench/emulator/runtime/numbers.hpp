// Lists the numbers that Python shares with the runtime; Python compares them with abi.py when it loads the runtime.
#pragma once
#include "cache.hpp"
#include "shadow.hpp"

struct SharedNumber {
  const char* name;
  uint64_t value;  // the constant, or the offset of the field in its structure
  uint64_t bytes;  // the size of the field or structure
};

#define CONSTANT(NAME) {#NAME, NAME, 0},
#define KIND(NAME) CONSTANT(kReport##NAME)
#define MEMBER(STRUCT, NAME, PATH) \
  {#STRUCT "." #NAME, offsetof(STRUCT, PATH), sizeof(static_cast<STRUCT*>(nullptr)->PATH)},
static const SharedNumber kSharedNumbers[] = {
    REPORT_KINDS(KIND)
    CONSTANT(kMaxReports) CONSTANT(kMaxSamples) CONSTANT(kMaxThreads) CONSTANT(kMaxTeam) CONSTANT(kDynamicSharedBytes)
    CONSTANT(kSharedCanaryBytes) CONSTANT(kGuardBytes) CONSTANT(kCountSlots) CONSTANT(kBranches)
    CONSTANT(kBothVolatile) CONSTANT(kBetweenBlocks) CONSTANT(kNarrowScope) CONSTANT(kUnacquired) CONSTANT(kGuarded)
    CONSTANT(kTakenEarly) CONSTANT(kNarrowFence)
    CONSTANT(kLaunchDone) CONSTANT(kLaunchAbandoned) CONSTANT(kLaunchWithoutThread) CONSTANT(opb_tensor_map_magic)
    CONSTANT(opb_texture_magic) CONSTANT(OPB_U8) CONSTANT(OPB_F16) CONSTANT(OPB_BF16) CONSTANT(OPB_F32)
    CONSTANT(OPB_TF32) CONSTANT(OPB_E4M3) CONSTANT(OPB_E5M2) CONSTANT(OPB_S8)
    CONSTANT(OPB_TEXEL_F32) CONSTANT(OPB_TEXEL_I32) CONSTANT(OPB_TEXEL_U8) CONSTANT(OPB_TEXEL_F16)
    CONSTANT(OPB_ADDRESS_CLAMP) CONSTANT(OPB_ADDRESS_BORDER) CONSTANT(OPB_ADDRESS_WRAP) CONSTANT(OPB_ADDRESS_MIRROR)
    CONSTANT(OPB_ACCESS_LOAD) CONSTANT(OPB_ACCESS_STORE) CONSTANT(OPB_ACCESS_ATOMIC) CONSTANT(kEventLoad)
    CONSTANT(kEventStore) CONSTANT(kEventAtomic) CONSTANT(kGlobal) CONSTANT(kShared) CONSTANT(kLocal)
    CONSTANT(kModule) CONSTANT(kBulk) CONSTANT(kOperand)
#define FIELD(NAME) MEMBER(Report, NAME, NAME)
    {"Report", 0, sizeof(Report)},
    FIELD(kind) FIELD(line) FIELD(other_line) FIELD(count) FIELD(program_counter) FIELD(address)
    FIELD(other_program_counter) FIELD(caller) FIELD(block) FIELD(thread) FIELD(other_block) FIELD(other_thread)
    FIELD(bytes) FIELD(access) FIELD(other_access) FIELD(warp) FIELD(other_warp) FIELD(instructions) FIELD(tag)
    FIELD(shared_bytes) FIELD(file) FIELD(text)
#undef FIELD
#define FIELD(NAME) MEMBER(Launch, NAME, NAME)
    {"Launch", 0, sizeof(Launch)},
    FIELD(entry) FIELD(arguments) FIELD(touch_shared) FIELD(dynamic_shared) FIELD(grid) FIELD(block)
    FIELD(shared_bytes) FIELD(tag) FIELD(workers) FIELD(aborted) FIELD(order_multiplier) FIELD(order_offset)
    FIELD(block_count) FIELD(next_block) FIELD(module_base) FIELD(module_end) FIELD(cluster) FIELD(cooperative)
    FIELD(partial_barriers) FIELD(programmatic) FIELD(seed) FIELD(spins) FIELD(sample_count) FIELD(block_milliseconds)
    FIELD(padding) FIELD(samples) FIELD(sample) FIELD(unfinished) FIELD(undefined_line) FIELD(undefined_fill)
    FIELD(trace)
#undef FIELD
#define FIELD(NAME) MEMBER(TraceBuffer, NAME, NAME)
    {"TraceBuffer", 0, sizeof(TraceBuffer)},
    FIELD(start) FIELD(bytes) FIELD(item_bytes) FIELD(initialised)
#undef FIELD
#define FIELD(NAME) MEMBER(SharedArray, NAME, NAME)
    {"SharedArray", 0, sizeof(SharedArray)},
    FIELD(offset) FIELD(bytes) FIELD(constant)
#undef FIELD
#define FIELD(NAME) MEMBER(TraceTotals, NAME, NAME)
    {"TraceTotals", 0, sizeof(TraceTotals)},
    FIELD(counted_blocks) FIELD(barriers) FIELD(accesses)
#undef FIELD
#define FIELD(NAME) MEMBER(CacheTotals, NAME, NAME)
    {"CacheTotals", 0, sizeof(CacheTotals)},
    FIELD(l2_loads) FIELD(l2_stores) FIELD(l2_atomics) FIELD(dram_loads) FIELD(dram_stores) FIELD(carried)
#undef FIELD
#define FIELD(NAME) MEMBER(Count, NAME, NAME)
    {"Count", 0, sizeof(Count)},
    FIELD(site) FIELD(event) FIELD(space) FIELD(bytes) FIELD(requests) FIELD(lanes) FIELD(sectors)
    FIELD(ideal_sectors) FIELD(wavefronts) FIELD(ideal_wavefronts) FIELD(collisions) FIELD(upper_requests)
    FIELD(upper_sectors) FIELD(upper_wavefronts)
    MEMBER(Count, requests_saved_8, saved[0].requests) MEMBER(Count, sectors_saved_8, saved[0].sectors)
    MEMBER(Count, wavefronts_saved_8, saved[0].wavefronts)
    MEMBER(Count, ideal_wavefronts_saved_8, saved[0].ideal_wavefronts)
    MEMBER(Count, requests_saved_16, saved[1].requests) MEMBER(Count, sectors_saved_16, saved[1].sectors)
    MEMBER(Count, wavefronts_saved_16, saved[1].wavefronts)
    MEMBER(Count, ideal_wavefronts_saved_16, saved[1].ideal_wavefronts)
#undef FIELD
#define FIELD(NAME) MEMBER(Branch, NAME, NAME)
    {"Branch", 0, sizeof(Branch)},
    FIELD(site) FIELD(next) FIELD(executions) FIELD(divergent) FIELD(fewest_lanes)
#undef FIELD
#define FIELD(NAME) MEMBER(opb_tensor_map, NAME, NAME)
    {"opb_tensor_map", 0, sizeof(opb_tensor_map)},
    FIELD(magic) FIELD(im2col) FIELD(rank) FIELD(bytes) FIELD(swizzle) FIELD(address) FIELD(dims) FIELD(box)
    FIELD(steps) FIELD(type) FIELD(padding) FIELD(strides) FIELD(lower) FIELD(upper) FIELD(channels) FIELD(pixels)
#undef FIELD
#define FIELD(NAME) MEMBER(opb_texture, NAME, NAME)
    {"opb_texture", 0, sizeof(opb_texture)},
    FIELD(magic) FIELD(surface) FIELD(dimensions) FIELD(type) FIELD(channels) FIELD(filter) FIELD(address) FIELD(read)
    FIELD(memory) FIELD(normalized) FIELD(start) FIELD(width) FIELD(height)
#undef FIELD
};
#undef MEMBER
#undef KIND
#undef CONSTANT
