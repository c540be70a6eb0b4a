// What a compiled kernel and the runtime agree on. Included by both sides, so it needs no other header.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

// The coordinates of the CUDA thread that runs on this operating-system thread at the moment.
struct opb_coordinates {
  uint3 thread, block, block_size, grid_size;
};

enum opb_warp_kind : unsigned {
  OPB_WARP_SYNC,
  OPB_WARP_SHUFFLE,
  OPB_WARP_BALLOT,
  OPB_WARP_MATCH_ANY,
  OPB_WARP_MATCH_ALL,
  OPB_WARP_ADD,
  OPB_WARP_MIN_SIGNED,
  OPB_WARP_MAX_SIGNED,
  OPB_WARP_MIN_UNSIGNED,
  OPB_WARP_MAX_UNSIGNED,
  OPB_WARP_AND,
  OPB_WARP_OR,
  OPB_WARP_XOR,
  OPB_WARP_ACTIVE,
};

enum opb_access_kind : unsigned { OPB_ACCESS_LOAD, OPB_ACCESS_STORE, OPB_ACCESS_ATOMIC };

enum opb_barrier_kind : unsigned { OPB_BARRIER_COUNT, OPB_BARRIER_AND, OPB_BARRIER_OR };

// A duplicated or moved barrier would be a different barrier.
#ifdef __clang__
#define OPB_CONVERGENT __attribute__((convergent, noduplicate))
#else
#define OPB_CONVERGENT
#endif
#define OPB_API __attribute__((visibility("default")))

extern "C" {
OPB_API extern __thread opb_coordinates opb_current __attribute__((tls_model("initial-exec")));

OPB_API OPB_CONVERGENT void opb_syncthreads(const char* file, unsigned line);
OPB_API OPB_CONVERGENT int opb_syncthreads_reduce(unsigned kind, int predicate, const char* file, unsigned line);
OPB_API OPB_CONVERGENT unsigned long long opb_warp(unsigned mask, unsigned kind, unsigned long long value,
                                                   int source_lane, const char* file, unsigned line);
// Every lane of the mask posts a pointer; the result is the warp's table of 32, valid until the next warp operation.
OPB_API OPB_CONVERGENT void* const* opb_share_pointers(unsigned mask, void* pointer, const char* file, unsigned line);
OPB_API char* opb_shared_base(void);
// Traced builds only. An access or fence that the compiler's instrumentation does not see; a coordinate of the current
// thread: const, as it never changes under a thread's feet, so that reading it is no access and happens once.
OPB_API void opb_trace_access(const void* pointer, unsigned bytes, unsigned access, const void* program_counter);
OPB_API void opb_trace_fence(void);
OPB_API void opb_trace_around_l1(void);  // the next access goes straight to the L2 cache
OPB_API __attribute__((const)) unsigned opb_coordinate(unsigned which, unsigned axis);
OPB_API void opb_yield(void);
OPB_API unsigned long long opb_clock(void);
OPB_API __attribute__((noreturn)) void opb_trap(const char* message, const char* file, unsigned line);
}
