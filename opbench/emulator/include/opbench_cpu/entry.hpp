// Defines the exported functions of a module: one per kernel, which unpacks `void**` as cuLaunchKernel does.
#pragma once

// One letter per parameter: p pointer, r pointer to const, b bool, c, s, i and l integers of 1, 2, 4 and 8 bytes, f float, d double, ? any other.
template <class T>
struct opb_letter {
  static constexpr char value = '?';
};
template <class T>
struct opb_letter<T*> {
  static constexpr char value = 'p';
};
template <class T>
struct opb_letter<const T*> {
  static constexpr char value = 'r';
};
template <class T>
struct opb_letter<const T> : opb_letter<T> {};
#define OPB_LETTER(TYPE, LETTER)               \
  template <>                                  \
  struct opb_letter<TYPE> {                    \
    static constexpr char value = LETTER;      \
  };
OPB_LETTER(bool, 'b')
OPB_LETTER(char, 'c')
OPB_LETTER(signed char, 'c')
OPB_LETTER(unsigned char, 'c')
OPB_LETTER(short, 's')
OPB_LETTER(unsigned short, 's')
OPB_LETTER(int, 'i')
OPB_LETTER(unsigned, 'i')
OPB_LETTER(float, 'f')
OPB_LETTER(double, 'd')
OPB_LETTER(long, 'l')
OPB_LETTER(unsigned long, 'l')
OPB_LETTER(long long, 'l')
OPB_LETTER(unsigned long long, 'l')

template <class... T>
struct opb_letters {
  static constexpr char text[] = {opb_letter<T>::value..., '\0'};
};

template <unsigned... Index>
struct opb_sequence {};
template <unsigned Count, unsigned... Index>
struct opb_count : opb_count<Count - 1, Count - 1, Index...> {};
template <unsigned... Index>
struct opb_count<0, Index...> {
  using type = opb_sequence<Index...>;
};

template <class T>
struct opb_plain {
  using type = T;
};
template <class T>
struct opb_plain<const T> {
  using type = T;
};
template <class T>
struct opb_plain<T&> : opb_plain<T> {};

template <class... T, unsigned... Index>
__attribute__((no_sanitize("thread"))) static inline void opb_call(void (*kernel)(T...), void** arguments,
                                                                   opb_sequence<Index...>) {
  (void)arguments;
  kernel(*static_cast<typename opb_plain<T>::type*>(arguments[Index])...);
}

template <class... T>
__attribute__((no_sanitize("thread"))) static inline void opb_enter(void (*kernel)(T...), void** arguments) {
  opb_call(kernel, arguments, typename opb_count<sizeof...(T)>::type{});
}

template <class... T>
static inline const char* opb_signature(void (*)(T...)) {
  return opb_letters<T...>::text;
}

template <class... T>
struct opb_bytes {
  static constexpr unsigned values[] = {sizeof(T)..., 0};
};
template <class... T>
static inline const unsigned* opb_sizes(void (*)(T...)) {
  return opb_bytes<T...>::values;
}

#define OPB_EXPORT extern "C" __attribute__((visibility("default"), no_sanitize("thread")))
#define OPB_ENTRY(SYMBOL, ...)                                                    \
  OPB_EXPORT void SYMBOL(void** arguments) { ::opb_enter(&__VA_ARGS__, arguments); } \
  OPB_EXPORT const char* SYMBOL##_signature() { return ::opb_signature(&__VA_ARGS__); } \
  OPB_EXPORT const unsigned* SYMBOL##_sizes() { return ::opb_sizes(&__VA_ARGS__); }

#define OPB_CONSTANT(SYMBOL, ...)                                  \
  OPB_EXPORT void* SYMBOL() { return (void*)&__VA_ARGS__; }        \
  OPB_EXPORT unsigned long long SYMBOL##_bytes() { return sizeof(__VA_ARGS__); }

// The link step defines opb_dynamic and makes every `extern __shared__` array an alias of it.
#define OPB_MODULE                                                                                    \
  extern "C" {                                                                                        \
  __attribute__((visibility("hidden"))) extern OPB_CONSTINIT thread_local char opb_dynamic[];         \
  }                                                                                                   \
  static OPB_CONSTINIT thread_local char opb_probe[16];                                               \
  OPB_EXPORT char* opb_touch_shared() { return opb_probe; }                                           \
  OPB_EXPORT char* opb_dynamic_shared() { return opb_dynamic; }
