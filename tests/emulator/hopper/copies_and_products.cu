// What the hardware does with a tensor map, a swizzle and a matrix descriptor: raw bytes, and sums that are exact in
// every order, which on_h200.json has of an H200. Instructions only, no header: every one here is the machine's own.
struct __align__(64) TensorMap {
  unsigned long long opaque[16];
};
extern __shared__ __align__(1024) unsigned char memory[];

__device__ unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }
__device__ void make_written_bytes_known() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One copy into shared memory at `offset`, whose `bytes` were 0xEE before; kind 2, 3, 4: a box of so many dimensions, 5: im2col.
extern "C" __global__ void __launch_bounds__(128)
load_tile(const __grid_constant__ TensorMap map, unsigned* out, int kind, int x, int y, int z, int w, int s, int r, int offset,
          int bytes, int expected) {
  const unsigned base = shared_address(memory), to = base + 1024 + offset;
  unsigned* words = reinterpret_cast<unsigned*>(memory + 1024);
  for (int i = threadIdx.x; i < bytes / 4; i += 128) words[i] = 0xeeeeeeee;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(base) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  make_written_bytes_known();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(base), "r"(expected) : "memory");
#define LOAD(KIND, DIMS, COORDINATES, ...)                                                                              \
  if (kind == KIND)                                                                                                     \
    asm volatile("cp.async.bulk.tensor." DIMS ".mbarrier::complete_tx::bytes [%0], [%1, {" COORDINATES "], [%2]"        \
                 __VA_ARGS__ ";" ::"r"(to), "l"(&map), "r"(base), "r"(x), "r"(y), "r"(z), "r"(w), "h"((short)s), "h"((short)r) \
                 : "memory");
    LOAD(2, "2d.shared::cluster.global.tile", "%3, %4}")
    LOAD(3, "3d.shared::cluster.global.tile", "%3, %4, %5}")
    LOAD(4, "4d.shared::cluster.global", "%3, %4, %5, %6}")
    LOAD(5, "4d.shared::cluster.global.im2col", "%3, %4, %5, %6}", ", {%7, %8}")
  }
  for (unsigned done = 0; !done;)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(base) : "memory");
  for (int i = threadIdx.x; i < bytes / 4; i += 128) out[i] = words[i];
}

// Shared memory to global through a map: what a store clips, and how it undoes the swizzle.
extern "C" __global__ void __launch_bounds__(128)
store_tile(const __grid_constant__ TensorMap map, const unsigned* in, int x, int y, int bytes) {
  for (int i = threadIdx.x; i < bytes / 4; i += 128) reinterpret_cast<unsigned*>(memory)[i] = in[i];
  make_written_bytes_known();
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];\n"
        "cp.async.bulk.commit_group;\n"
        "cp.async.bulk.wait_group 0;\n" ::"l"(&map), "r"(shared_address(memory)), "r"(x), "r"(y) : "memory");
}

#define NAMES                                                                                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}, "
#define D8(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3]), "+f"(d[I + 4]), "+f"(d[I + 5]), "+f"(d[I + 6]), "+f"(d[I + 7])
#define COMMA ,
#define CASE(KIND, SHAPE, OPERANDS, TAIL)                                                                               \
  if (kind == KIND) {                                                                                                   \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64" SHAPE NAMES TAIL ";" : D8(0), D8(8), D8(16), D8(24) : OPERANDS, "l"(b)); \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                                                      \
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                                                      \
  }
#define IN_REGISTERS "r"(r[0]) COMMA "r"(r[1]) COMMA "r"(r[2]) COMMA "r"(r[3])
// out [case][thread][32] = sums of `kind` for each pair of descriptors over a shared memory that holds `image`;
// descriptors count from its start. Kinds 4 and 7 take a from registers [thread][4].
extern "C" __global__ void __launch_bounds__(128)
multiply_cases(const unsigned* image, int bytes, const unsigned long long* descriptors, const unsigned* registers, float* out,
               int kind, int cases) {
  for (int i = threadIdx.x; i < bytes / 4; i += 128) reinterpret_cast<unsigned*>(memory)[i] = image[i];
  make_written_bytes_known();
  __syncthreads();
  const unsigned long long base = shared_address(memory) >> 4;
  for (int at = 0; at < cases; ++at) {
    const unsigned long long a = descriptors[2 * at] + base, b = descriptors[2 * at + 1] + base;
    const unsigned* r = registers + (at * 128 + threadIdx.x) * 4;
    float d[32];
    for (int i = 0; i < 32; ++i) d[i] = 0.5f * i;
    CASE(0, "k16.f32.bf16.bf16 ", "l"(a), "%32, %33, 1, 1, 1, 0, 0")
    CASE(1, "k16.f32.bf16.bf16 ", "l"(a), "%32, %33, 1, 1, 1, 0, 1")
    CASE(2, "k16.f32.bf16.bf16 ", "l"(a), "%32, %33, 1, 1, 1, 1, 0")
    CASE(3, "k16.f32.bf16.bf16 ", "l"(a), "%32, %33, 1, 1, 1, 1, 1")
    CASE(4, "k16.f32.bf16.bf16 ", IN_REGISTERS, "{%32, %33, %34, %35}, %36, 1, 1, 1, 0")
    CASE(5, "k16.f32.f16.f16 ", "l"(a), "%32, %33, 1, 1, 1, 0, 0")
    CASE(6, "k8.f32.tf32.tf32 ", "l"(a), "%32, %33, 1, 1, 1")
    CASE(7, "k8.f32.tf32.tf32 ", IN_REGISTERS, "{%32, %33, %34, %35}, %36, 1, 1, 1")
    for (int i = 0; i < 32; ++i) out[(at * 128 + threadIdx.x) * 32 + i] = d[i];
  }
}
