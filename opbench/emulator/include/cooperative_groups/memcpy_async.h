// Implements collective copies: the part of each thread lands when the thread waits.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class Group>
static inline void opb_start_share(const Group& group, char* to, const char* from, unsigned long long bytes) {
  const unsigned long long both = (unsigned long long)to | (unsigned long long)from | bytes;
  const unsigned piece = both % 16 == 0 ? 16 : both % 8 == 0 ? 8 : both % 4 == 0 ? 4 : 1;
  const char* shared = opb_shared_base();
  const bool lands_later = piece > 1 && to >= shared && to < shared + (1 << 20);
  for (unsigned long long at = (unsigned long long)group.thread_rank() * piece; at < bytes;
       at += (unsigned long long)group.size() * piece) {
    if (lands_later) {
      ::opb_ptx::cp_async_ca_shared_global((unsigned long long)__cvta_generic_to_shared(to + at),
                                           (unsigned long long)(from + at), piece);
    } else {
      for (unsigned byte = 0; byte < piece; ++byte) to[at + byte] = from[at + byte];
    }
  }
}
template <class Group>
static inline void opb_copy_share(const Group& group, char* to, const char* from, unsigned long long bytes) {
  opb_start_share(group, to, from, bytes);
  ::opb_ptx::cp_async_commit_group();
}

template <class Group, class To, class From>
static inline void memcpy_async(const Group& group, To* to, const From* from, unsigned long long bytes) {
  opb_copy_share(group, (char*)to, (const char*)from, bytes);
}
// Source and destination sizes in elements; the smaller number is copied.
template <class Group, class T>
static inline void memcpy_async(const Group& group, T* to, unsigned long long room, const T* from,
                                unsigned long long count) {
  opb_copy_share(group, (char*)to, (const char*)from, (room < count ? room : count) * sizeof(T));
}
template <class Group>
OPB_CONVERGENT static inline void wait(const Group& group, OPB_SITE) {
  opb_wait_for_copies(0);
  opb_meet(group, file, line);
}
template <unsigned Pending, class Group>
OPB_CONVERGENT static inline void wait_prior(const Group& group, OPB_SITE) {
  opb_wait_for_copies(Pending);
  opb_meet(group, file, line);
}

}  // namespace cooperative_groups
