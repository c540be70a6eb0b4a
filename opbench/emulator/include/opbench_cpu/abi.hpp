// Declares the interface between compiled kernels and the runtime. Both include it, so it needs no other header.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

// The coordinates of the CUDA thread that currently runs on this operating-system thread.
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
  OPB_WARP_MATRIX,  // whole-warp instructions such as ldmatrix and mma.sync, which do not order memory accesses
};
// In the bits above a kind: the instruction, because different instructions of one kind do not synchronise.
enum opb_warp_form : unsigned {
  OPB_FORM_INDEX = 1 << 8,
  OPB_FORM_UP = 2 << 8,
  OPB_FORM_DOWN = 3 << 8,
  OPB_FORM_XOR = 4 << 8,
  OPB_FORM_ANY = 5 << 8,
  OPB_FORM_ALL = 6 << 8,
};

enum opb_access_kind : unsigned { OPB_ACCESS_LOAD, OPB_ACCESS_STORE, OPB_ACCESS_ATOMIC };
// Flags of an access or fence: the memory order and scope. Without a scope flag, the scope is the device.
enum opb_access_word : unsigned {
  OPB_STRONG = 4,  // a load or store that is an atomic operation: .relaxed, .acquire, .release
  OPB_VOLATILE = 8,
  OPB_ACQUIRES = 16,
  OPB_RELEASES = 32,
  OPB_BLOCK_SCOPE = 64,
  OPB_CLUSTER_SCOPE = 128,
  OPB_COUNTS = 256,  // an atomic addition, such as on a counter
  OPB_COMPARES = 512,  // a compare-and-swap, such as on a lock
};

enum opb_barrier_kind : unsigned { OPB_BARRIER_COUNT, OPB_BARRIER_AND, OPB_BARRIER_OR };

// CUtensorMap on a CPU: a description in the same 128 bytes. Python fills it; dimensions are innermost first.
struct opb_tensor_map {
  unsigned magic;
  unsigned char im2col, rank, bytes, swizzle;  // swizzle: 0 none, 1 32 bytes, 2 64, 3 128, as cuda.h counts
  unsigned long long address;
  unsigned dims[5];
  unsigned short box[5];
  unsigned char steps[5], type;  // type of the elements: an opb_type
  unsigned padding;
  unsigned long long strides[4];
  short lower[3], upper[3];
  unsigned short channels, pixels;
};
constexpr unsigned opb_tensor_map_magic = 0x70616d54u;

// A texture or surface on a CPU: the object is a pointer to this description. Python fills it.
struct opb_texture {
  unsigned magic;
  unsigned char surface, dimensions, type, channels, filter, address, read, memory;
  unsigned normalized;
  unsigned long long start;
  unsigned width, height;
};
constexpr unsigned opb_texture_magic = 0x78657462u;
enum opb_texel_type : unsigned { OPB_TEXEL_F32, OPB_TEXEL_I32, OPB_TEXEL_U8, OPB_TEXEL_F16 };
enum opb_address_mode : unsigned { OPB_ADDRESS_CLAMP, OPB_ADDRESS_BORDER, OPB_ADDRESS_WRAP, OPB_ADDRESS_MIRROR };

// The start of a bulk tensor copy: coordinates, and the filter offsets of an im2col copy.
struct opb_place {
  unsigned rank;
  int at[5], offsets[3];
};

enum opb_type : unsigned { OPB_U8, OPB_U32, OPB_S32, OPB_F16, OPB_BF16, OPB_F32, OPB_TF32, OPB_E4M3, OPB_E5M2, OPB_S8 };

enum opb_bulk_kind : unsigned {
  OPB_LOAD_TILE,
  OPB_LOAD_IM2COL,
  OPB_STORE,
  OPB_REDUCE_ADD,
  OPB_REDUCE_MIN,
  OPB_REDUCE_MAX,
};

// One wgmma: 64 x n x k. The addresses of the accumulator registers are listed unless they are contiguous.
struct opb_product {
  opb_type a_type, b_type;
  unsigned n, k;
  bool a_in_registers, a_transposed, b_transposed, add;
  bool half_sums;  // accumulators are f16, two in a 32-bit register
  int scale_a, scale_b;
  unsigned long long a, b;  // matrix descriptors
  unsigned a_registers[4];
};

// Blocking: the wait of a class such as cuda::barrier, which tries again itself. Others may return false too early.
enum opb_mbarrier_wait : unsigned { OPB_WAIT_PARITY, OPB_WAIT_STATE, OPB_WAIT_BLOCKING };

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
// A warp operation of all 32 lanes. Each lane passes a pointer; the result is the table of the 32 pointers, valid until
// the warp's next operation.
OPB_API OPB_CONVERGENT void* const* opb_share_pointers(void* pointer, const char* file, unsigned line);
// Reports a block whose threads do not fill its last tile.
OPB_API void opb_require_whole_tiles(unsigned size, const char* file, unsigned line);
// mma.sync, 16 x 8 x k: the four 32-bit accumulators and the operand registers of a lane.
OPB_API OPB_CONVERGENT void opb_multiply(opb_type a_type, opb_type b_type, unsigned k, void* sums, const unsigned* a,
                                         const unsigned* b, const char* file, unsigned line);
OPB_API char* opb_shared_base(void);
// cp.async: copies into shared memory land when the thread that started them waits.
OPB_API void opb_copy_async(void* to, const void* from, unsigned bytes, unsigned valid, const void* program_counter);
OPB_API void opb_commit_copies(void);
OPB_API void opb_wait_for_copies(unsigned pending);
// Asynchronous work. `at` is the return address in the kernel. An address is an offset into shared memory, with the
// block's rank in its cluster plus one in the upper byte for another block's memory; or a generic pointer.
OPB_API char* opb_shared_pointer(unsigned long long address);
OPB_API unsigned opb_shared_address(const void* pointer);
OPB_API void opb_mbarrier_init(unsigned long long address, unsigned count, const void* at);
OPB_API void opb_mbarrier_forget(unsigned long long address, const void* at);
OPB_API unsigned long long opb_mbarrier_arrive(unsigned long long address, unsigned count, long long bytes, bool drops,
                                               const void* at);
OPB_API void opb_mbarrier_expect(unsigned long long address, long long bytes, const void* at);
OPB_API bool opb_mbarrier_over(unsigned long long address, unsigned kind, unsigned long long wanted, const void* at);
OPB_API void opb_copies_arrive(unsigned long long address, bool counted, const void* at);
OPB_API void opb_load_tensor(unsigned kind, unsigned long long to, const void* map, const opb_place* place,
                             unsigned long long barrier, unsigned ranks, const void* at);
OPB_API void opb_store_tensor(unsigned kind, const void* map, const opb_place* place, unsigned long long from,
                              const void* at);
OPB_API void opb_load_bulk(bool from_global, unsigned long long to, unsigned long long from, unsigned bytes,
                           unsigned long long barrier, unsigned ranks, const void* at);
OPB_API void opb_store_bulk(unsigned kind, unsigned type, unsigned long long to, unsigned long long from,
                            unsigned bytes, const void* at);
OPB_API void opb_store_async(unsigned long long to, unsigned long long barrier, const void* data, unsigned bytes,
                             const void* at);
OPB_API void opb_commit_bulk(void);
OPB_API void opb_wait_for_bulk(unsigned pending, const void* at);
OPB_API void opb_fence_proxies(void);
OPB_API void opb_product_issue(const opb_product* product, float* const* sums, const void* at);
OPB_API void opb_product_fence(void);
OPB_API void opb_product_commit(const char* file, unsigned line);
OPB_API void opb_product_wait(unsigned pending, const char* file, unsigned line, const void* at);
OPB_API void opb_named_barrier(unsigned barrier, unsigned threads, bool waits, const void* at);
OPB_API void opb_set_registers(unsigned count, const void* at);
OPB_API uint3 opb_cluster_place(unsigned which);  // 0 the block in its cluster, 1 size, 2 the cluster, 3 how many
OPB_API unsigned opb_cluster_rank(void);
OPB_API void opb_cluster_arrive(bool releases, const void* at);
OPB_API void opb_cluster_wait(const void* at);
OPB_API void opb_wait_for_launches(void);
// Traced builds only: accesses and fences that the compiler does not instrument, and coordinates of the current thread.
// opb_coordinate is const because a thread's coordinates never change, so that reading one is not an access.
OPB_API void opb_trace_access(const void* pointer, unsigned bytes, unsigned access, const void* program_counter);
// Copies of any size; `room` is the number of bytes from the pointer to the end of its variable, if it is known.
OPB_API void* opb_trace_memcpy(void* to, const void* from, unsigned long bytes, unsigned long room,
                               unsigned long room_from);
OPB_API void* opb_trace_memmove(void* to, const void* from, unsigned long bytes, unsigned long room,
                                unsigned long room_from);
OPB_API void* opb_trace_memset(void* to, int value, unsigned long bytes, unsigned long room);
OPB_API int opb_trace_memcmp(const void* left, const void* right, unsigned long bytes, unsigned long room,
                             unsigned long room_right);
OPB_API void opb_trace_atomic(const void* pointer, unsigned bytes, unsigned word, const void* program_counter);
OPB_API void opb_trace_swapped(const void* pointer, unsigned bytes, const void* before, unsigned word);
OPB_API void opb_trace_order(unsigned word);  // the order and scope of the next access
OPB_API void opb_trace_fence(unsigned word);
OPB_API void opb_trace_bypass_l1(void);  // the next access bypasses L1
OPB_API __attribute__((const)) unsigned opb_coordinate(unsigned which, unsigned axis);
OPB_API void opb_yield(void);
OPB_API unsigned long long opb_clock(void);
OPB_API __attribute__((noreturn)) void opb_trap(const char* message, const char* file, unsigned line);
}
