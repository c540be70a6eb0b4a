// Implements reductions and scans over the threads of a tile or coalesced group, in the order of their ranks.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

#define OPB_OPERATION(NAME, EXPRESSION)                 \
  template <class T = void>                             \
  struct NAME {                                         \
    T operator()(T a, T b) const { return EXPRESSION; } \
  };                                                    \
  template <>                                           \
  struct NAME<void> {                                   \
    template <class T>                                  \
    T operator()(T a, T b) const {                      \
      return EXPRESSION;                                \
    }                                                   \
  };
OPB_OPERATION(plus, a + b)
OPB_OPERATION(less, b < a ? b : a)
OPB_OPERATION(greater, a < b ? b : a)
OPB_OPERATION(bit_and, a & b)
OPB_OPERATION(bit_or, a | b)
OPB_OPERATION(bit_xor, a ^ b)

template <class Group, class T, class Operation>
OPB_CONVERGENT static inline T reduce(const Group& group, T value, Operation operation, OPB_SITE) {
  T result = group.shfl(value, 0, file, line);
  for (unsigned rank = 1; rank < group.size(); ++rank) result = operation(result, group.shfl(value, rank, file, line));
  return result;
}

template <class Group, class T, class Operation = plus<T>>
OPB_CONVERGENT static inline T inclusive_scan(const Group& group, T value, Operation operation = {}, OPB_SITE) {
  const unsigned own = group.thread_rank();
  T result = group.shfl(value, 0, file, line);
  for (unsigned rank = 1; rank < group.size(); ++rank) {
    const T other = group.shfl(value, rank, file, line);
    if (rank <= own) result = operation(result, other);
  }
  return result;
}

template <class Group, class T, class Operation = plus<T>>
OPB_CONVERGENT static inline T exclusive_scan(const Group& group, T value, Operation operation = {}, OPB_SITE) {
  const T sum = inclusive_scan(group, value, operation, file, line);
  const unsigned own = group.thread_rank();
  const T before = group.shfl(sum, own ? own - 1 : 0, file, line);
  return own ? before : T{};
}

template <class Group, class Function>
static inline void invoke_one(const Group& group, Function function) {
  if (group.thread_rank() == 0) function();
}

}  // namespace cooperative_groups
