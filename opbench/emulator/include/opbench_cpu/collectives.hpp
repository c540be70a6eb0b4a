// Implements CUB's reductions, scans, loads and stores of a block or warp, in the simplest way.
//
// As in CUB, there is no barrier at the end: reusing the temporary storage without a barrier is a race.
#pragma once

namespace cub {

#define OPB_OPERATION(NAME, EXPRESSION)       \
  struct NAME {                               \
    template <class T>                        \
    T operator()(const T& a, const T& b) const { \
      return EXPRESSION;                      \
    }                                         \
  };
OPB_OPERATION(Sum, a + b)
OPB_OPERATION(Max, a < b ? b : a)
OPB_OPERATION(Min, b < a ? b : a)
#undef OPB_OPERATION

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE
};

static inline int opb_rank() { return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)); }

template <class T, int Threads>
struct opb_storage {
  T values[Threads];
};

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
class BlockReduce {
 public:
  static constexpr int threads = X * Y * Z;
  using TempStorage = opb_storage<T, threads>;
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {}

  template <class Operation>
  OPB_CONVERGENT T Reduce(T own, Operation operation, int valid, OPB_SITE) {
    const int rank = opb_rank();
    storage_.values[rank] = own;
    opb_syncthreads(file, line);
    if (rank != 0) return own;
    for (int other = 1; other < (valid < threads ? valid : threads); ++other) {
      own = operation(own, storage_.values[other]);
    }
    return own;
  }
  template <class Operation>
  OPB_CONVERGENT T Reduce(T own, Operation operation, OPB_SITE) {
    return Reduce(own, operation, threads, file, line);
  }
  template <int Items, class Operation>
  OPB_CONVERGENT T Reduce(T (&items)[Items], Operation operation, OPB_SITE) {
    T own = items[0];
    for (int item = 1; item < Items; ++item) own = operation(own, items[item]);
    return Reduce(own, operation, threads, file, line);
  }
  OPB_CONVERGENT T Sum(T own, OPB_SITE) { return Reduce(own, cub::Sum(), threads, file, line); }
  OPB_CONVERGENT T Sum(T own, int valid, OPB_SITE) { return Reduce(own, cub::Sum(), valid, file, line); }
  template <int Items>
  OPB_CONVERGENT T Sum(T (&items)[Items], OPB_SITE) {
    return Reduce(items, cub::Sum(), file, line);
  }

 private:
  TempStorage& storage_;
};

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
class BlockScan {
 public:
  static constexpr int threads = X * Y * Z;
  struct TempStorage {
    T values[threads], prefix;
  };
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}

  // The combination of the values of all threads before this one, at least one; and of all threads.
  template <class Operation>
  OPB_CONVERGENT T opb_before(T own, Operation operation, T& all, const char* file, unsigned line) {
    const int rank = opb_rank();
    storage_.values[rank] = own;
    opb_syncthreads(file, line);
    T sum = storage_.values[0], before = sum;
    for (int other = 1; other < threads; ++other) {
      if (other == rank) before = sum;
      sum = operation(sum, storage_.values[other]);
    }
    all = sum;
    return before;
  }
  template <class Operation>
  OPB_CONVERGENT void InclusiveScan(T in, T& out, Operation operation, T& all, OPB_SITE) {
    const T before = opb_before(in, operation, all, file, line);
    out = opb_rank() ? operation(before, in) : in;
  }
  template <class Operation>
  OPB_CONVERGENT void InclusiveScan(T in, T& out, Operation operation, OPB_SITE) {
    T all;
    InclusiveScan(in, out, operation, all, file, line);
  }
  template <class Operation>
  OPB_CONVERGENT void ExclusiveScan(T in, T& out, T initial, Operation operation, T& all, OPB_SITE) {
    const T before = opb_before(in, operation, all, file, line);
    out = opb_rank() ? operation(initial, before) : initial;
  }
  template <class Operation>
  OPB_CONVERGENT void ExclusiveScan(T in, T& out, T initial, Operation operation, OPB_SITE) {
    T all;
    ExclusiveScan(in, out, initial, operation, all, file, line);
  }
  OPB_CONVERGENT void InclusiveSum(T in, T& out, OPB_SITE) { InclusiveScan(in, out, cub::Sum(), file, line); }
  OPB_CONVERGENT void InclusiveSum(T in, T& out, T& all, OPB_SITE) {
    InclusiveScan(in, out, cub::Sum(), all, file, line);
  }
  OPB_CONVERGENT void ExclusiveSum(T in, T& out, OPB_SITE) { ExclusiveScan(in, out, T(), cub::Sum(), file, line); }
  OPB_CONVERGENT void ExclusiveSum(T in, T& out, T& all, OPB_SITE) {
    ExclusiveScan(in, out, T(), cub::Sum(), all, file, line);
  }
  template <int Items>
  OPB_CONVERGENT void InclusiveSum(T (&in)[Items], T (&out)[Items], OPB_SITE) {
    InclusiveScan(in, out, cub::Sum(), file, line);
  }
  template <int Items>
  OPB_CONVERGENT void ExclusiveSum(T (&in)[Items], T (&out)[Items], OPB_SITE) {
    ExclusiveScan(in, out, T(), cub::Sum(), file, line);
  }

  // A scan of several items per thread; `prefix` receives the block's total and returns the value before the block.
  template <int Items, class Operation>
  OPB_CONVERGENT void InclusiveScan(T (&in)[Items], T (&out)[Items], Operation operation, OPB_SITE) {
    T own = in[0], all;
    for (int item = 1; item < Items; ++item) own = operation(own, in[item]);
    const T before = opb_before(own, operation, all, file, line);
    T sum = opb_rank() ? operation(before, in[0]) : in[0];
    for (int item = 0;; sum = operation(sum, in[item])) {
      out[item] = sum;
      if (++item == Items) break;
    }
  }
  template <int Items, class Operation>
  OPB_CONVERGENT void ExclusiveScan(T (&in)[Items], T (&out)[Items], T initial, Operation operation, OPB_SITE) {
    T own = in[0], all;
    for (int item = 1; item < Items; ++item) own = operation(own, in[item]);
    const T before = opb_before(own, operation, all, file, line);
    T sum = opb_rank() ? operation(initial, before) : initial;
    for (int item = 0; item < Items; ++item) {
      const T next = operation(sum, in[item]);
      out[item] = sum, sum = next;
    }
  }
  template <int Items, class Operation, class Prefix>
  OPB_CONVERGENT void InclusiveScan(T (&in)[Items], T (&out)[Items], Operation operation, Prefix& prefix, OPB_SITE) {
    T own = in[0], all;
    for (int item = 1; item < Items; ++item) own = operation(own, in[item]);
    const T before = opb_before(own, operation, all, file, line);
    if (opb_rank() < 32) {
      const T earlier = prefix(all);
      if (opb_rank() == 0) storage_.prefix = earlier;
    }
    opb_syncthreads(file, line);
    T sum = operation(opb_rank() ? operation(storage_.prefix, before) : storage_.prefix, in[0]);
    for (int item = 0;; sum = operation(sum, in[item])) {
      out[item] = sum;
      if (++item == Items) break;
    }
  }

 private:
  TempStorage& storage_;
};

template <class T, int Lanes = 32, int = 0>
class WarpReduce {
 public:
  struct TempStorage {
    unsigned unused;
  };
  explicit WarpReduce(TempStorage&) {}
  template <class Operation>
  OPB_CONVERGENT T Reduce(T own, Operation operation, int valid, OPB_SITE) {
    const int lane = (int)opb_lane_id() % Lanes;
    for (int step = 1; step < Lanes; step *= 2) {
      const T other = __shfl_down_sync(opb_full_mask, own, step, Lanes, file, line);
      if (lane + step < (valid < Lanes ? valid : Lanes)) own = operation(own, other);
    }
    return own;
  }
  template <class Operation>
  OPB_CONVERGENT T Reduce(T own, Operation operation, OPB_SITE) {
    return Reduce(own, operation, Lanes, file, line);
  }
  OPB_CONVERGENT T Sum(T own, OPB_SITE) { return Reduce(own, cub::Sum(), Lanes, file, line); }
  OPB_CONVERGENT T Sum(T own, int valid, OPB_SITE) { return Reduce(own, cub::Sum(), valid, file, line); }
};

template <class T, int Lanes = 32, int = 0>
class WarpScan {
 public:
  struct TempStorage {
    unsigned unused;
  };
  explicit WarpScan(TempStorage&) {}
  template <class Operation>
  OPB_CONVERGENT void InclusiveScan(T in, T& out, Operation operation, OPB_SITE) {
    const int lane = (int)opb_lane_id() % Lanes;
    for (int step = 1; step < Lanes; step *= 2) {
      const T other = __shfl_up_sync(opb_full_mask, in, step, Lanes, file, line);
      if (lane >= step) in = operation(other, in);
    }
    out = in;
  }
  OPB_CONVERGENT void InclusiveSum(T in, T& out, OPB_SITE) { InclusiveScan(in, out, cub::Sum(), file, line); }
  OPB_CONVERGENT void ExclusiveSum(T in, T& out, OPB_SITE) {
    T sum;
    InclusiveScan(in, sum, cub::Sum(), file, line);
    const T before = __shfl_up_sync(opb_full_mask, sum, 1, Lanes, file, line);
    out = opb_lane_id() % Lanes ? before : T();
  }
};

template <class T, int X, int Items, BlockLoadAlgorithm Algorithm = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockLoad {
 public:
  struct TempStorage {
    unsigned unused;
  };
  BlockLoad() = default;
  explicit BlockLoad(TempStorage&) {}
  static int opb_place(int item) {
    return Algorithm == BLOCK_LOAD_STRIPED ? item * X * Y * Z + opb_rank() : opb_rank() * Items + item;
  }
  template <class From>
  void Load(From from, T (&items)[Items]) {
    for (int item = 0; item < Items; ++item) items[item] = from[opb_place(item)];
  }
  template <class From>
  void Load(From from, T (&items)[Items], int valid) {
    for (int item = 0; item < Items; ++item) {
      if (opb_place(item) < valid) items[item] = from[opb_place(item)];
    }
  }
  template <class From, class Default>
  void Load(From from, T (&items)[Items], int valid, Default other) {
    for (int item = 0; item < Items; ++item) items[item] = opb_place(item) < valid ? from[opb_place(item)] : T(other);
  }
};

template <class T, int X, int Items, BlockStoreAlgorithm Algorithm = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockStore {
 public:
  struct TempStorage {
    unsigned unused;
  };
  BlockStore() = default;
  explicit BlockStore(TempStorage&) {}
  static int opb_place(int item) {
    return Algorithm == BLOCK_STORE_STRIPED ? item * X * Y * Z + opb_rank() : opb_rank() * Items + item;
  }
  template <class To>
  void Store(To to, T (&items)[Items]) {
    for (int item = 0; item < Items; ++item) to[opb_place(item)] = items[item];
  }
  template <class To>
  void Store(To to, T (&items)[Items], int valid) {
    for (int item = 0; item < Items; ++item) {
      if (opb_place(item) < valid) to[opb_place(item)] = items[item];
    }
  }
};

}  // namespace cub
