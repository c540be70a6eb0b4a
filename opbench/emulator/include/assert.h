// Makes a failed assertion a finding; libc's would end the process. No include guard, as the standard requires.
#undef assert
#define assert(condition) \
  ((condition) ? (void)0 : ::opb_trap("assertion failed: " #condition, __FILE__, __LINE__))
