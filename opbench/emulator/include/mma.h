// Implements WMMA. CUDA leaves a fragment's layout open; here element e is in lane e % 32, slot e / 32. A trace records
// the accesses of the hardware nevertheless.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
namespace precision {
struct tf32 {};
}
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K>
struct opb_shape;
template <int M, int N, int K>
struct opb_shape<matrix_a, M, N, K> {
  static constexpr int rows = M, columns = K;
};
template <int M, int N, int K>
struct opb_shape<matrix_b, M, N, K> {
  static constexpr int rows = K, columns = N;
};
template <int M, int N, int K>
struct opb_shape<accumulator, M, N, K> {
  static constexpr int rows = M, columns = N;
};

template <class T>
struct opb_storage {
  using type = T;
};
template <>
struct opb_storage<precision::tf32> {
  using type = float;
};

template <class Layout>
struct opb_is_row_major {
  static constexpr bool value = true;
};
template <>
struct opb_is_row_major<col_major> {
  static constexpr bool value = false;
};

template <class Use>
struct opb_is_accumulator {
  static constexpr bool value = false;
};
template <>
struct opb_is_accumulator<accumulator> {
  static constexpr bool value = true;
};
template <class Use>
struct opb_is_columns_first {
  static constexpr bool value = false;
};
template <>
struct opb_is_columns_first<matrix_b> {
  static constexpr bool value = true;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr int rows = opb_shape<Use, M, N, K>::rows;
  static constexpr int columns = opb_shape<Use, M, N, K>::columns;
  static constexpr int num_elements = rows * columns / 32;
  static constexpr bool is_accumulator = opb_is_accumulator<Use>::value;
  static constexpr bool columns_first = opb_is_columns_first<Use>::value;
  static constexpr bool row_order = opb_is_row_major<Layout>::value;
  using element_type = T;
  using storage_element_type = typename opb_storage<T>::type;
  storage_element_type x[num_elements];
};

static inline float __float_to_tf32(float value) {
  float rounded;
  opb_ptx::cvt_rna_tf32_f32(rounded, value);
  return rounded;
}

template <class Fragment, class V>
static inline void fill_fragment(Fragment& destination, V value) {
  for (auto& element : destination.x) element = value;
}

template <class Fragment>
struct opb_place {
  int row, column;
  OPB_UNSEEN_INLINE explicit opb_place(int slot) {
    int element = slot * 32 + (int)opb_lane_id();
    row = element / Fragment::columns;
    column = element % Fragment::columns;
  }
  OPB_UNSEEN_INLINE unsigned offset(bool row_order, unsigned stride) const {
    return row_order ? row * stride + column : column * stride + row;
  }
};

static inline bool opb_in_shared(const void* pointer) { return __cvta_generic_to_shared(pointer) < 1u << 20; }

// Reports the accesses of the calling lane, as NVRTC 13.5 compiles these functions for compute capability 9.0. Lines of
// the matrix are one stride apart in memory. Registers hold the fragments of mma.sync (PTX ISA): of each block of 8
// lines by 4 E elements, lane l has E neighbouring elements of line l / 4, from element E (l % 4) on. ldmatrix reads
// operands of 16 bits from shared memory, 16 bytes of a line per lane, and operands of 8 bits in the order of memory.
// Other transposed operands are read element by element; movmatrix transposes operands of 16 bits in registers.
template <class Fragment, class T>
OPB_UNSEEN_INLINE void opb_see_matrix(const T* start, unsigned stride, bool row_order, unsigned access,
                                      const void* program_counter) {
#ifdef OPB_TRACE
  constexpr int size = sizeof(T), E = Fragment::is_accumulator ? 2 : size < 4 ? 4 / size : 1;
  const int lines = row_order ? Fragment::rows : Fragment::columns;
  const int length = row_order ? Fragment::columns : Fragment::rows, lane = (int)opb_lane_id();
  const bool turned = row_order == Fragment::columns_first;
  if (!Fragment::is_accumulator && opb_in_shared(start) && (size == 2 || (size == 1 && !turned))) {
    for (int row = lane; row < lines * length * size / 16; row += 32) {
      opb_trace_access(start + row % lines * stride + row / lines * (16 / size), 16, access, program_counter);
    }
    return;
  }
  const bool along = size == 2 || !turned;
  const int majors = along ? lines : length, minors = along ? length : lines;
  for (int major = lane / 4; major < majors; major += 8) {
    for (int minor = lane % 4 * E; minor < minors; minor += 4 * E) {
      if (along) {
        opb_trace_access(start + major * stride + minor, E * size, access, program_counter);
        continue;
      }
      for (int part = 0; part < E; ++part) {
        opb_trace_access(start + (minor + part) * stride + major, size, access, program_counter);
      }
    }
  }
#endif
}

template <class Fragment, class T>
OPB_UNSEEN_INLINE void opb_load(Fragment& destination, const T* source, unsigned stride, bool row_order, const char* file,
                                unsigned line, const void* program_counter) {
  opb_see_matrix<Fragment>(source, stride, row_order, OPB_ACCESS_LOAD, program_counter);
  for (int slot = 0; slot < Fragment::num_elements; ++slot) {
    destination.x[slot] = source[opb_place<Fragment>(slot).offset(row_order, stride)];
  }
  opb_warp(opb_full_mask, OPB_WARP_MATRIX, 0, 0, file, line);
}

template <class Fragment, class T>
static OPB_UNSEEN void load_matrix_sync(Fragment& destination, const T* source, unsigned stride, OPB_SITE) {
  opb_load(destination, source, stride, Fragment::row_order, file, line, __builtin_return_address(0));
}
template <class Fragment, class T>
static OPB_UNSEEN void load_matrix_sync(Fragment& destination, const T* source, unsigned stride, layout_t layout,
                                        OPB_SITE) {
  opb_load(destination, source, stride, layout == mem_row_major, file, line, __builtin_return_address(0));
}

template <class T, class Fragment>
static OPB_UNSEEN void store_matrix_sync(T* target, const Fragment& source, unsigned stride, layout_t layout, OPB_SITE) {
  const void* caller = __builtin_return_address(0);
  opb_see_matrix<Fragment>(target, stride, layout == mem_row_major, OPB_ACCESS_STORE, caller);
  for (int slot = 0; slot < Fragment::num_elements; ++slot) {
    target[opb_place<Fragment>(slot).offset(layout == mem_row_major, stride)] = source.x[slot];
  }
  opb_warp(opb_full_mask, OPB_WARP_MATRIX, 0, 0, file, line);
}

template <class T>
struct opb_sum {
  using type = float;
  static OPB_UNSEEN_INLINE float read(typename opb_storage<T>::type value) { return value; }
};
template <>
struct opb_sum<precision::tf32> {
  using type = float;
  static OPB_UNSEEN_INLINE float read(float value) {
    return opb_bit_cast<float>(opb_bit_cast<unsigned>(value) & 0xffffe000u);
  }
};
template <>
struct opb_sum<signed char> {
  using type = int;
  static OPB_UNSEEN_INLINE int read(signed char value) { return value; }
};
template <>
struct opb_sum<unsigned char> {
  using type = int;
  static OPB_UNSEEN_INLINE int read(unsigned char value) { return value; }
};
template <>
struct opb_sum<double> {
  using type = double;
  static OPB_UNSEEN_INLINE double read(double value) { return value; }
};

template <class D, class A, class B, class C>
static OPB_UNSEEN void mma_sync(D& d, const A& a, const B& b, const C& c, OPB_SITE) {
  using Left = opb_sum<typename A::element_type>;
  using Right = opb_sum<typename B::element_type>;
  struct Fragments {
    const A* a;
    const B* b;
  } own = {&a, &b};
  void* const* lanes = opb_share_pointers(&own, file, line);
  typename Left::type sums[D::num_elements];
  for (int slot = 0; slot < D::num_elements; ++slot) {
    opb_place<D> place(slot);
    sums[slot] = c.x[slot];
    for (int k = 0; k < A::columns; ++k) {
      int left = place.row * A::columns + k, right = k * B::columns + place.column;
      sums[slot] += Left::read(((const Fragments*)lanes[left % 32])->a->x[left / 32]) *
                    Right::read(((const Fragments*)lanes[right % 32])->b->x[right / 32]);
    }
  }
  opb_warp(opb_full_mask, OPB_WARP_MATRIX, 0, 0, file, line);
  for (int slot = 0; slot < D::num_elements; ++slot) d.x[slot] = sums[slot];
}

}  // namespace wmma
}  // namespace nvcuda
