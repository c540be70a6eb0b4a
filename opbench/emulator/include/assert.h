// libc's assertion would end the process: a kernel's is a finding. Read anew each time, as the standard has it.
#undef assert
#define assert(condition) \
  ((condition) ? (void)0 : ::opb_trap("assertion failed: " #condition, __FILE__, __LINE__))
