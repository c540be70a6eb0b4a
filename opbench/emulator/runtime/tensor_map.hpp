// Computes the geometry of bulk copies: the place of each byte of a tensor in shared memory, with swizzles, clipped
// boxes and im2col.
#pragma once
#include "mbarrier.hpp"

static inline uint32_t inner_bytes(const opb_tensor_map& map) {
  return (map.im2col ? map.channels : map.box[0]) * map.bytes;
}

static inline uint32_t extent_of(const opb_tensor_map& map, uint32_t axis) {
  return (map.box[axis] + map.steps[axis] - 1u) / map.steps[axis];
}

static uint32_t row_count(const opb_tensor_map& map) {
  uint32_t rows = map.im2col ? map.pixels : 1;
  for (uint32_t axis = 1; axis < map.rank && !map.im2col; ++axis) rows *= extent_of(map, axis);
  return rows;
}

// A swizzled row takes its whole span, even if the row is shorter.
static inline uint32_t row_pitch(const opb_tensor_map& map) {
  return map.swizzle ? 16u << map.swizzle : inner_bytes(map);
}

// Swizzles 16-byte pieces by bits 7 to 9 of the address, less a descriptor's base offset.
static inline uint32_t swizzled(uint32_t address, uint32_t span, uint32_t base_offset = 0) {
  return address ^ (((address >> 7) - base_offset) & (span / 16 - 1)) << 4;
}

// One row of a copy: `from` is the address of the tensor row, `first` the offset in bytes at which the box begins in
// it. `exists` is false if the row lies outside of the tensor.
struct BulkRow {
  uint64_t from;
  int64_t first;
  uint32_t number;
  bool exists;
};

template <class Visit>
static void for_each_row(const opb_tensor_map& map, const opb_place& place, Visit visit) {
  int64_t at[5] = {};
  for (uint32_t axis = 1; axis < map.rank; ++axis) at[axis] = place.at[axis];
  uint32_t index[5] = {}, rows = row_count(map);
  for (uint32_t number = 0; number < rows; ++number) {
    BulkRow row = {map.address, (int64_t)place.at[0] * map.bytes, number, true};
    for (uint32_t axis = 1; axis < map.rank; ++axis) {
      int64_t here = at[axis] + (map.im2col && axis + 1 < map.rank ? place.offsets[axis - 1] : 0);
      row.exists = row.exists && here >= 0 && here < map.dims[axis];
      row.from += here * map.strides[axis - 1];
    }
    visit(row);
    for (uint32_t axis = 1; axis < map.rank;
         ++axis) {  // the next row of the box; or pixel of the bounding box, then image
      at[axis] += map.steps[axis];
      bool last = axis + 1 == map.rank;
      if (map.im2col ? last || at[axis] <= (int64_t)map.dims[axis] - 1 + map.upper[axis - 1]
                     : ++index[axis] < extent_of(map, axis)) {
        break;
      }
      at[axis] = map.im2col ? map.lower[axis - 1] : place.at[axis];
      index[axis] = 0;
    }
  }
}

// Calls visit(offset in shared memory, global address, first existing byte, last + 1) for every 16 bytes of a copy.
template <class Visit>
static void for_each_16_bytes(const Bulk& copy, Visit visit) {
  if (copy.bytes) {
    for (uint32_t done = 0; done < copy.bytes; done += 16) visit(copy.shared + done, copy.from + done, 0u, 16u);
    return;
  }
  const opb_tensor_map& map = copy.map;
  const uint32_t span = map.swizzle ? 16u << map.swizzle : 0, pitch = row_pitch(map), inner = inner_bytes(map);
  const int64_t end = (int64_t)map.dims[0] * map.bytes;
  for_each_row(map, copy.place, [&](const BulkRow& row) {
    for (uint32_t done = 0; done < inner; done += 16) {
      uint32_t to = copy.shared + row.number * pitch + done;
      int64_t at = row.first + done, low = at < 0 ? -at : 0, high = end - at < 16 ? end - at : 16;
      if (!row.exists || low >= high) low = high = 0;
      visit(span ? swizzled(to, span) : to, row.from + (uint64_t)at, (uint32_t)low, (uint32_t)high);
    }
  });
}

// Returns the bytes of shared memory that a copy occupies, with the gaps of a swizzled box. A copy adds as many bytes
// to its barrier.
static uint32_t footprint(const Bulk& copy) {
  return copy.bytes ? copy.bytes : row_count(copy.map) * row_pitch(copy.map);
}
static uint32_t counted_bytes(const Bulk& copy) {
  return copy.bytes ? copy.bytes : row_count(copy.map) * inner_bytes(copy.map);
}

static uint32_t round_to_tf32(uint32_t bits) {  // to nearest even
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffe000u : (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u;
}
