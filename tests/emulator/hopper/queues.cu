// In the manner of hand-written kernels: barriers as plain arrays, sums as d[n / 16][8], queues of QSIZE stages, a 3-D
// map whose boxes are columns of 64 k. out [n][m] (column by column) = a [m][k] . b [n][k]; a persistent block walks tiles.
#include <cuda.h>
#include <cuda_bf16.h>
typedef __nv_bfloat16 bf16;
constexpr int BM = 128, BN = 64, BK = 64, QSIZE = 2, THREADS = 384;

__device__ static inline unsigned long long encode(unsigned long long x) { return (x & 0x3FFFF) >> 0x4; }
__device__ unsigned long long make_smem_desc(bf16* ptr) {
  unsigned addr = static_cast<unsigned>(__cvta_generic_to_shared(ptr));
  unsigned long long desc = 0x0000000000000000;
  desc |= encode(addr);
  desc |= encode((unsigned long long)16) << 16;
  desc |= encode((unsigned long long)1024) << 32;
  desc |= 1llu << 62;
  return desc;
}
template <int ScaleD, int ScaleA, int ScaleB, int TnspA, int TnspB>
__device__ __forceinline__ void wgmma64(float d[4][8], bf16* sA, bf16* sB) {
  unsigned long long desc_a = make_smem_desc(&sA[0]);
  unsigned long long desc_b = make_smem_desc(&sB[0]);
  asm volatile(
      "{\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,   %1,   %2,   %3,   %4,   %5,   %6,   %7,   "
      " %8,   %9,   %10,  %11,  %12,  %13,  %14,  %15,  "
      " %16,  %17,  %18,  %19,  %20,  %21,  %22,  %23,  "
      " %24,  %25,  %26,  %27,  %28,  %29,  %30,  %31},"
      " %32,"
      " %33,"
      " %34, %35, %36, %37, %38;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[0][4]), "+f"(d[0][5]), "+f"(d[0][6]), "+f"(d[0][7]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[1][4]), "+f"(d[1][5]), "+f"(d[1][6]), "+f"(d[1][7]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[2][4]), "+f"(d[2][5]), "+f"(d[2][6]), "+f"(d[2][7]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[3][4]), "+f"(d[3][5]), "+f"(d[3][6]), "+f"(d[3][7])
      : "l"(desc_a), "l"(desc_b), "n"(int(ScaleD)), "n"(int(ScaleA)), "n"(int(ScaleB)), "n"(int(TnspA)), "n"(int(TnspB)));
}
__device__ static __forceinline__ void init_barrier(unsigned long long* bar, int thread_count, int transaction_count) {
  unsigned bar_ptr = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar_ptr), "r"(thread_count + transaction_count));
}
__device__ static __forceinline__ void expect_bytes(unsigned long long* bar, unsigned bytes) {
  unsigned bar_ptr = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar_ptr), "r"(bytes));
}
__device__ static inline void load_async(bf16* dst, void const* map, unsigned long long* bar, int column, int row) {
  unsigned long long tma_ptr = reinterpret_cast<unsigned long long>(map);
  unsigned mbar_ptr = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  unsigned dst_ptr = static_cast<unsigned>(__cvta_generic_to_shared(dst));
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];"
      :
      : "r"(dst_ptr), "l"(tma_ptr), "r"(mbar_ptr), "n"(0), "r"(row), "r"(column / 64)
      : "memory");
}
__device__ static __forceinline__ void wait(unsigned long long* bar, int kPhaseBit) {
  unsigned mbar_ptr = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  asm volatile(
      "{\n"
      ".reg .pred                P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P1, [%0], %1;\n"
      "@P1                       bra.uni DONE;\n"
      "bra.uni                   LAB_WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(mbar_ptr),
      "r"(kPhaseBit));
}
__device__ static __forceinline__ void arrive(unsigned long long* bar, unsigned count = 1) {
  unsigned mbar_ptr = static_cast<unsigned>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;\n" : : "r"(mbar_ptr), "r"(count) : "memory");
}

struct SMem {
  alignas(128) bf16 A[BM * BK * QSIZE];
  alignas(128) bf16 B[BK * BN * QSIZE];
};

extern "C" __global__ void __launch_bounds__(THREADS)
queued(int m, int n, int k, float* out, const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b) {
  extern __shared__ __align__(1024) unsigned char smem[];
  SMem& s = *reinterpret_cast<SMem*>(smem);
  bf16 *sA = s.A, *sB = s.B;
  __shared__ unsigned long long full[QSIZE], empty[QSIZE];
  const int num_blocks_k = k / BK, tiles = m / BM * (n / BN);
  int wg_idx = threadIdx.x / 128, tid = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < QSIZE; ++i) {
      init_barrier(&full[i], 0, 1);
      init_barrier(&empty[i], 0, 2);
    }
  }
  __syncthreads();
  if (wg_idx == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" : : "n"(24));
    if (tid == 0) {
      int phase = 0, qidx = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        for (int block_k = 0; block_k < num_blocks_k; ++block_k, ++qidx) {
          if (qidx == QSIZE) qidx = 0, phase ^= 1;
          wait(&empty[qidx], phase);
          expect_bytes(&full[qidx], (BK * BN + BK * BM) * sizeof(bf16));
          load_async(&sA[qidx * BK * BM], &map_a, &full[qidx], block_k * BK, tile % (m / BM) * BM);
          load_async(&sB[qidx * BK * BN], &map_b, &full[qidx], block_k * BK, tile / (m / BM) * BN);
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" : : "n"(240));
    --wg_idx;
    if (tid == 0)
      for (int qidx = 0; qidx < QSIZE; ++qidx) arrive(&empty[qidx]);
    int phase = 0, qidx = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      float d[4][8] = {};
      for (int block_k = 0; block_k < num_blocks_k; ++block_k, ++qidx) {
        if (qidx == QSIZE) qidx = 0, phase ^= 1;
        wait(&full[qidx], phase);
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int k_it = 0; k_it < BK / 16; ++k_it)
          wgmma64<1, 1, 1, 0, 0>(d, &sA[qidx * BK * BM + 64 * wg_idx * BK + k_it * 16], &sB[qidx * BK * BN + k_it * 16]);
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(0) : "memory");
        if (tid == 0) arrive(&empty[qidx]);
      }
      const int lane = tid % 32, row = tile % (m / BM) * BM + wg_idx * 64 + tid / 32 * 16 + lane / 4;
      for (int w = 0; w < 4; ++w)
        for (int i = 0; i < 8; ++i)
          out[(size_t)(tile / (m / BM) * BN + 16 * w + i / 4 * 8 + 2 * (lane % 4) + i % 2) * m + row + i / 2 % 2 * 8] = d[w][i];
    }
  }
}
