// In the manner of class libraries: an instruction is a struct with a static function that takes every register by
// reference, a barrier is a class over 64 bits of shared memory, and a pipeline hands out stages by index and phase.
// out [m][n] = a [m][k] . b [n][k] in bf16; a pair of blocks, one above the other, shares b by multicast.
#include <cuda_bf16.h>
#include <stdint.h>

namespace kit {

struct alignas(64) Descriptor {
  char bytes[128];
};

__device__ __forceinline__ uint32_t cast_smem_ptr_to_uint(void const* const ptr) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(ptr));
}

__device__ __forceinline__ uint32_t elect_one_sync() {
  uint32_t pred = 0;
  uint32_t laneid = 0;
  asm volatile(
      "{\n"
      ".reg .b32 %%rx;\n"
      ".reg .pred %%px;\n"
      "     elect.sync %%rx|%%px, %2;\n"
      "@%%px mov.s32 %1, 1;\n"
      "     mov.s32 %0, %%rx;\n"
      "}\n"
      : "+r"(laneid), "+r"(pred)
      : "r"(0xFFFFFFFF));
  return pred;
}

class ClusterBarrier {
 public:
  using ValueType = uint64_t;
  __device__ static void init(ValueType const* smem_ptr, uint32_t arrive_count) {
    uint32_t smem_addr = cast_smem_ptr_to_uint(smem_ptr);
    asm volatile(
        "{\n\t"
        "mbarrier.init.shared::cta.b64 [%1], %0; \n"
        "}"
        :
        : "r"(arrive_count), "r"(smem_addr));
  }
  __device__ static void wait(ValueType const* smem_ptr, uint32_t phase) {
    uint32_t smem_addr = cast_smem_ptr_to_uint(smem_ptr);
    uint32_t ticks = 0x989680;  // a hint of how long to wait
    asm volatile(
        "{\n\t"
        ".reg .pred       P1; \n\t"
        "LAB_WAIT: \n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1, %2; \n\t"
        "@P1 bra DONE; \n\t"
        "bra     LAB_WAIT; \n\t"
        "DONE: \n\t"
        "}"
        :
        : "r"(smem_addr), "r"(phase), "r"(ticks));
  }
  __device__ static uint32_t test_wait(ValueType const* smem_ptr, uint32_t phase, uint32_t pred) {
    uint32_t smem_addr = cast_smem_ptr_to_uint(smem_ptr);
    uint32_t waitComplete;
    asm volatile(
        "{\n\t"
        ".reg .pred P1; \n\t"
        ".reg .pred P2; \n\t"
        "setp.eq.u32 P2, %3, 1;\n\t"
        "@P2 mbarrier.test_wait.parity.shared::cta.b64 P1, [%1], %2; \n\t"
        "selp.b32 %0, 1, 0, P1; \n\t"
        "}"
        : "=r"(waitComplete)
        : "r"(smem_addr), "r"(phase), "r"(pred));
    return waitComplete;
  }
  __device__ static void arrive(ValueType const* smem_ptr, uint32_t cta_id, uint32_t pred) {
    uint32_t smem_addr = cast_smem_ptr_to_uint(smem_ptr);
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        ".reg .b32 remAddr32;\n\t"
        "setp.eq.u32 p, %2, 1;\n\t"
        "@p mapa.shared::cluster.u32  remAddr32, %0, %1;\n\t"
        "@p mbarrier.arrive.shared::cluster.b64  _, [remAddr32];\n\t"
        "}"
        :
        : "r"(smem_addr), "r"(cta_id), "r"(pred));
  }
  __device__ static void arrive_and_expect_tx(ValueType const* smem_ptr, uint32_t transaction_bytes) {
    uint32_t smem_addr = cast_smem_ptr_to_uint(smem_ptr);
    asm volatile(
        "{\n\t"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %0; \n\t"
        "}"
        :
        : "r"(transaction_bytes), "r"(smem_addr));
  }
};

struct TMA_LOAD_2D {
  __device__ static void copy(void const* desc_ptr, uint64_t* mbar_ptr, uint64_t cache_hint, void* smem_ptr, int32_t const& crd0,
                              int32_t const& crd1) {
    uint64_t gmem_int_desc = reinterpret_cast<uint64_t>(desc_ptr);
    uint32_t smem_int_mbar = cast_smem_ptr_to_uint(mbar_ptr);
    uint32_t smem_int_ptr = cast_smem_ptr_to_uint(smem_ptr);
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4}], [%2], %5;"
        :
        : "r"(smem_int_ptr), "l"(gmem_int_desc), "r"(smem_int_mbar), "r"(crd0), "r"(crd1), "l"(cache_hint)
        : "memory");
  }
};
struct TMA_LOAD_MULTICAST_2D {
  __device__ static void copy(void const* desc_ptr, uint64_t* mbar_ptr, uint16_t multicast_mask, uint64_t cache_hint, void* smem_ptr,
                              int32_t const& crd0, int32_t const& crd1) {
    uint64_t gmem_int_desc = reinterpret_cast<uint64_t>(desc_ptr);
    uint32_t smem_int_mbar = cast_smem_ptr_to_uint(mbar_ptr);
    uint32_t smem_int_ptr = cast_smem_ptr_to_uint(smem_ptr);
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%4, %5}], [%2], %3, %6;"
        :
        : "r"(smem_int_ptr), "l"(gmem_int_desc), "r"(smem_int_mbar), "h"(multicast_mask), "r"(crd0), "r"(crd1), "l"(cache_hint)
        : "memory");
  }
};
struct TMA_STORE_2D {
  __device__ static void copy(void const* desc_ptr, void const* smem_ptr, int32_t const& crd0, int32_t const& crd1) {
    uint64_t gmem_int_desc = reinterpret_cast<uint64_t>(desc_ptr);
    uint32_t smem_int_ptr = cast_smem_ptr_to_uint(smem_ptr);
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 :
                 : "l"(gmem_int_desc), "r"(smem_int_ptr), "r"(crd0), "r"(crd1)
                 : "memory");
  }
};

// GMMA 64x32x16: D 64 x 32 in 16 registers
struct MMA_64x32x16_F32BF16BF16_SS {
  __device__ static void fma(uint64_t const& desc_a, uint64_t const& desc_b, float& d00, float& d01, float& d02, float& d03, float& d04,
                             float& d05, float& d06, float& d07, float& d08, float& d09, float& d10, float& d11, float& d12, float& d13,
                             float& d14, float& d15, int const scale_D) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,   %1,   %2,   %3,   %4,   %5,   %6,   %7,   "
        " %8,   %9,   %10,  %11,  %12,  %13,  %14,  %15},"
        " %16,"
        " %17,"
        " p,   %19,  %20,  %21,  %22;\n"
        "}\n"
        : "+f"(d00), "+f"(d01), "+f"(d02), "+f"(d03), "+f"(d04), "+f"(d05), "+f"(d06), "+f"(d07), "+f"(d08), "+f"(d09), "+f"(d10),
          "+f"(d11), "+f"(d12), "+f"(d13), "+f"(d14), "+f"(d15)
        : "l"(desc_a), "l"(desc_b), "r"(int32_t(scale_D)), "n"(int32_t(1)), "n"(int32_t(1)), "n"(int32_t(0)), "n"(int32_t(0)));
  }
};
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit_batch() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int N>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
// Keeps the compiler from moving what it does with a register over a wait.
__device__ __forceinline__ void warpgroup_fence_operand(float& reg) { asm volatile("" : "+f"(reg)::"memory"); }

union GmmaDescriptor {
  uint64_t desc_;
  struct {
    uint16_t start_address_ : 14, : 2;
    uint16_t leading_byte_offset_ : 14, : 2;
    uint16_t stride_byte_offset_ : 14, : 2;
    uint8_t : 1, base_offset_ : 3, : 4;
    uint8_t : 6, layout_type_ : 2;
  } bitfield;
};
__device__ __forceinline__ uint64_t make_descriptor(void const* smem, int k_block) {
  GmmaDescriptor desc;
  desc.desc_ = 0;
  desc.bitfield.layout_type_ = 1;
  desc.bitfield.start_address_ = (cast_smem_ptr_to_uint(smem) >> 4) + k_block * 2;
  desc.bitfield.stride_byte_offset_ = 64;
  desc.bitfield.leading_byte_offset_ = 1;
  return desc.desc_;
}

template <int Stages>
struct PipelineState {
  int index = 0;
  uint32_t phase;
  __device__ explicit PipelineState(uint32_t first_phase) : phase(first_phase) {}
  __device__ void operator++() {
    ++index;
    if (index == Stages) {
      index = 0;
      phase ^= 1;
    }
  }
};

template <int Stages>
struct SharedStorage {
  alignas(1024) __nv_bfloat16 a[Stages][64 * 64];
  alignas(1024) __nv_bfloat16 b[Stages][32 * 64];
  alignas(128) __nv_bfloat16 d[64 * 32];
  alignas(8) uint64_t full[Stages];
  uint64_t empty[Stages];
};

}  // namespace kit

using namespace kit;
constexpr int kStages = 3;

extern "C" __global__ void __launch_bounds__(256, 1)
gemm(const __grid_constant__ Descriptor tma_a, const __grid_constant__ Descriptor tma_b, const __grid_constant__ Descriptor tma_d, int k) {
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<SharedStorage<kStages>*>(raw);
  const int warp_group_idx = threadIdx.x / 128, warp_idx = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  uint32_t block_rank, cluster_size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(block_rank) :);
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;\n" : "=r"(cluster_size) :);
  if (warp_idx == 0 && elect_one_sync()) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&tma_a)) : "memory");
    for (int i = 0; i < kStages; ++i) {
      ClusterBarrier::init(&shared.full[i], 1);
      ClusterBarrier::init(&shared.empty[i], cluster_size);
    }
    asm volatile("fence.mbarrier_init.release.cluster; \n" ::);
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" : :);
  asm volatile("barrier.cluster.wait.aligned;\n" : :);
  const int k_tiles = (k + 63) / 64;
  if (warp_group_idx == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" : : "n"(40));
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    PipelineState<kStages> write(1);
    if (warp_idx == 0 && elect_one_sync()) {
      for (int tile = 0; tile < k_tiles; ++tile, ++write) {
        ClusterBarrier::wait(&shared.empty[write.index], write.phase);
        ClusterBarrier::arrive_and_expect_tx(&shared.full[write.index], sizeof(shared.a[0]) + sizeof(shared.b[0]));
        TMA_LOAD_2D::copy(&tma_a, &shared.full[write.index], policy, shared.a[write.index], tile * 64, blockIdx.x * 64);
        TMA_LOAD_MULTICAST_2D::copy(&tma_b, &shared.full[write.index], uint16_t((1 << cluster_size) - 1), policy,
                                    shared.b[write.index] + block_rank * (32 / 2) * 64, tile * 64, blockIdx.y * 32 + block_rank * 16);
      }
      for (int i = 0; i < kStages; ++i, ++write) ClusterBarrier::wait(&shared.empty[write.index], write.phase);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" : : "n"(232));
    PipelineState<kStages> read(0), release(0);
    float d[16];
    for (float& one : d) one = 0.0f;
    for (int tile = 0; tile < k_tiles; ++tile, ++read) {
      if (!ClusterBarrier::test_wait(&shared.full[read.index], read.phase, 1)) ClusterBarrier::wait(&shared.full[read.index], read.phase);
      for (float& one : d) warpgroup_fence_operand(one);
      warpgroup_arrive();
#pragma unroll
      for (int k_block = 0; k_block < 4; ++k_block)
        MMA_64x32x16_F32BF16BF16_SS::fma(make_descriptor(shared.a[read.index], k_block), make_descriptor(shared.b[read.index], k_block), d[0],
                                         d[1], d[2], d[3], d[4], d[5], d[6], d[7], d[8], d[9], d[10], d[11], d[12], d[13], d[14], d[15], 1);
      warpgroup_commit_batch();
      warpgroup_wait<1>();
      for (float& one : d) warpgroup_fence_operand(one);
      if (tile > 0) {
        ClusterBarrier::arrive(&shared.empty[release.index], threadIdx.x % 128, threadIdx.x % 128 < cluster_size);
        ++release;
      }
    }
    warpgroup_wait<0>();
    ClusterBarrier::arrive(&shared.empty[release.index], threadIdx.x % 128, threadIdx.x % 128 < cluster_size);
    const int lane = threadIdx.x % 32, warp = warp_idx % 4;
    for (int part = 0; part < 2; ++part) {
      uint32_t regs[4];
      for (int i = 0; i < 4; ++i)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(regs[i]) : "f"(d[part * 8 + i * 2 + 1]), "f"(d[part * 8 + i * 2]));
      const __nv_bfloat16* row = shared.d + (warp * 16 + lane % 16) * 32 + part * 16 + lane / 16 * 8;
      asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(cast_smem_ptr_to_uint(row)),
                   "r"(regs[0]), "r"(regs[1]), "r"(regs[2]), "r"(regs[3]));
    }
    asm volatile("fence.proxy.async.shared::cta;\n" ::);
    asm volatile("bar.sync %0, %1;" : : "r"(1), "r"(128));
    if (threadIdx.x == 128) {
      TMA_STORE_2D::copy(&tma_d, shared.d, blockIdx.y * 32, blockIdx.x * 64);
      asm volatile("cp.async.bulk.commit_group;");
      asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(0) : "memory");
    }
  }
}
