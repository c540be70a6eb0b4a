// Defines growing arrays, because the runtime does not use the C++ library.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "memory.hpp"

template <class T>
static T* append(T** items, uint32_t* count, uint32_t* capacity) {
  if (*count == *capacity) {
    uint32_t more = *capacity ? *capacity * 2 : 16;
    T* grown = (T*)reallocate(*items, more * sizeof(T));
    if (!grown) {  // the launch ends, and its data is discarded
      static T spare;
      return &spare;
    }
    *items = grown;
    *capacity = more;
  }
  return &(*items)[(*count)++];
}

// A list of zero bytes is empty. There is no destructor, because workers live as long as the process.
template <class T>
struct List {
  T* items;
  uint32_t count, capacity;

  T* begin() { return items; }
  T* end() { return items + count; }
  T& operator[](uint32_t index) { return items[index]; }
  T& add(const T& item) { return *append(&items, &count, &capacity) = item; }
  void remove(uint32_t index) { memmove(items + index, items + index + 1, (--count - index) * sizeof(T)); }
  void clear() { count = 0; }
};
