// Models a GPU's caches: turns the counted requests into the traffic that reaches L2 and DRAM.
//
// Every multiprocessor has an L1 that loads fill and stores pass through; the L2 is one, writes back, and is cold when
// a trace begins. Lines of 128 bytes hold four sectors, each fetched by itself. Sets are chosen by a hash and replaced
// by age, so that only capacity counts, as addresses of a GPU are hashed too. (An H200 joins some stores of parts of a
// sector in L1, by timing rather than by rule: joining all of them is farther from its counters than joining none.)
//
// Warps run one after another here and concurrently on a GPU. The requests of each warp are stored until a wave of
// blocks, as many as are resident on a GPU, has run; then they go to the caches as if all warps of the wave progressed
// equally fast.
#pragma once
#include "trace.hpp"

constexpr uint32_t kLineShift = 7;  // bytes of a line
constexpr uint32_t kLineSectors = 4;
constexpr uint32_t kWays = 16;
constexpr uint32_t kSlices = 1024;        // the maximum number of pieces in which a wave's warps take turns
constexpr uint64_t kWaveItems = 8 << 20;  // a wave with more requests is processed in parts

struct CacheLine {
  uint64_t line;  // the address >> kLineShift; 0: empty
  uint32_t used, launch;
  uint8_t valid, dirty, fresh;  // one bit for each sector; fresh: accessed by the launch of number `launch`
};

struct Cache {
  CacheLine* lines;
  uint32_t sets, clock;
  size_t capacity;  // allocated lines
};

// Read by Python; numbers.hpp lists the fields. All are numbers of sectors.
struct CacheTotals {
  uint64_t l2_loads, l2_stores, l2_atomics;
  uint64_t dram_loads, dram_stores;
  uint64_t carried;  // reads that hit sectors which an earlier launch of this trace brought into L2
};

// The requests of one warp: line << 8 | sectors << 4 | whether they bypass L1 << 3 | event.
struct Stream {
  uint64_t* items;
  uint32_t count, capacity, multiprocessor;
};

struct Caches {
  Cache l2;
  Cache* l1;
  uint32_t l1_count, launch;
  uint32_t wave_blocks, blocks;  // the blocks of a wave, and the begun blocks of the current wave
  uint32_t multiprocessor;       // of the running block
  Stream* streams;               // one for each warp of each block; those of the current wave first
  uint32_t stream_count, stream_capacity, block_streams;
  Stream* stream;  // of the warp in replay
  uint64_t items;
  CacheTotals totals;
};

static bool size_cache(Cache* cache, size_t bytes) {
  size_t sets = bytes >> kLineShift >> 4;
  if (sets < 1) sets = 1;
  if (sets * kWays > cache->capacity) {
    if (cache->lines) munmap(cache->lines, cache->capacity * sizeof(CacheLine));
    cache->lines = (CacheLine*)map_zeros(sets * kWays * sizeof(CacheLine));
    cache->capacity = cache->lines ? sets * kWays : 0;
  }
  cache->sets = cache->lines ? (uint32_t)sets : 0;
  return cache->sets;
}

static void free_caches(Caches* caches) {
  if (!caches) return;
  for (uint32_t index = 0; index < caches->l1_count; ++index) {
    Cache* l1 = &caches->l1[index];
    if (l1->lines) munmap(l1->lines, l1->capacity * sizeof(CacheLine));
  }
  for (uint32_t index = 0; index < caches->stream_capacity; ++index) free(caches->streams[index].items);
  free(caches->streams);
  if (caches->l2.lines) munmap(caches->l2.lines, caches->l2.capacity * sizeof(CacheLine));
  free(caches->l1);
  free(caches);
}

// Returns the line if it is cached; otherwise, if `replaced` is given, evicts the least recently used line for it.
static CacheLine* find_line(Cache* cache, uint64_t line, CacheLine* replaced) {
  uint64_t hash = line * 0x9e3779b97f4a7c15ull;
  CacheLine* set = cache->lines + ((hash >> 32) * cache->sets >> 32) * kWays;
  CacheLine* oldest = set;
  uint32_t now = ++cache->clock;
  for (uint32_t way = 0; way < kWays; ++way) {
    if (set[way].line == line) {
      set[way].used = now;
      return &set[way];
    }
    if (now - set[way].used > now - oldest->used || (!set[way].line && oldest->line)) oldest = &set[way];
  }
  if (!replaced) return nullptr;
  *replaced = *oldest;
  *oldest = {line, now, 0, 0, 0, 0};
  return oldest;
}

static void touch_l2(Caches* caches, uint64_t line, uint32_t sectors, uint32_t event) {
  CacheLine evicted = {};
  CacheLine* found = find_line(&caches->l2, line, &evicted);
  caches->totals.dram_stores += __builtin_popcount(evicted.dirty);
  if (found->launch != caches->launch) {
    found->launch = caches->launch;
    found->fresh = 0;
  }
  if (event != kEventStore) {
    caches->totals.dram_loads += __builtin_popcount(sectors & ~found->valid);
    caches->totals.carried += __builtin_popcount(sectors & found->valid & ~found->fresh);
  }
  found->valid |= sectors;
  found->fresh |= sectors;
  if (event != kEventLoad) found->dirty |= sectors;
}

static void touch_caches(Caches* caches, Cache* l1, uint64_t line, uint32_t sectors, uint32_t event, bool bypasses_l1) {
  if (event == kEventLoad && !bypasses_l1) {
    CacheLine evicted;
    CacheLine* found = find_line(l1, line, &evicted);
    if (found->launch != caches->launch) {
      found->launch = caches->launch;  // L1 lines of an earlier launch are no longer valid
      found->valid = 0;
    }
    sectors &= ~found->valid;
    found->valid |= sectors;
    if (!sectors) return;
  }
  uint32_t count = __builtin_popcount(sectors);
  CacheTotals* totals = &caches->totals;
  *(event == kEventLoad ? &totals->l2_loads : event == kEventStore ? &totals->l2_stores : &totals->l2_atomics) += count;
  touch_l2(caches, line, sectors, event);
}

// Passes the requests of the current wave to the caches; its warps take turns.
static void finish_wave(Caches* caches) {
  uint32_t longest = 0;
  for (uint32_t index = 0; index < caches->stream_count; ++index) {
    if (caches->streams[index].count > longest) longest = caches->streams[index].count;
  }
  uint64_t slices = longest < kSlices ? longest : kSlices;
  for (uint64_t slice = 0; slice < slices; ++slice) {
    for (uint32_t index = 0; index < caches->stream_count; ++index) {
      const Stream* stream = &caches->streams[index];
      uint64_t end = stream->count * (slice + 1) / slices;
      for (uint64_t place = stream->count * slice / slices; place < end; ++place) {
        uint64_t item = stream->items[place];
        touch_caches(caches, &caches->l1[stream->multiprocessor], item >> 8, item >> 4 & 15, item & 7, item >> 3 & 1);
      }
    }
  }
  for (uint32_t index = 0; index < caches->stream_count; ++index) caches->streams[index].count = 0;
  caches->items = 0;
}

// Begins a block with `warps` warps.
static void begin_cached_block(Caches* caches, uint64_t index, uint32_t warps) {
  if (caches->blocks == caches->wave_blocks) {
    finish_wave(caches);
    caches->blocks = caches->stream_count = 0;
  }
  ++caches->blocks;
  caches->multiprocessor = (uint32_t)(index % caches->l1_count);
  caches->block_streams = caches->stream_count;
  caches->stream_count += warps;
  if (caches->stream_count > caches->stream_capacity) {
    uint32_t capacity = caches->stream_count * 2;
    Stream* grown = (Stream*)reallocate(caches->streams, capacity * sizeof(Stream));
    if (!grown) {
      caches->stream_count -= warps;
      return;
    }
    caches->streams = grown;
    memset(caches->streams + caches->stream_capacity, 0, (capacity - caches->stream_capacity) * sizeof(Stream));
    caches->stream_capacity = capacity;
  }
  for (uint32_t warp = 0; warp < warps; ++warp) {
    caches->streams[caches->block_streams + warp].multiprocessor = caches->multiprocessor;
  }
}

static inline void choose_stream(Caches* caches, uint32_t warp) {
  caches->stream = &caches->streams[caches->block_streams + warp];
}

// Adds one request of a warp, with each of its sectors once.
static void cache_request(Caches* caches, const uint64_t* addresses, uint32_t count, uint32_t bytes, uint32_t event,
                          bool bypasses_l1) {
  Stream* stream = caches->stream;
  uint32_t begin = stream->count;
  for (uint32_t index = 0; index < count; ++index) {
    uint64_t first = addresses[index] >> 5, last = (addresses[index] + bytes - 1) >> 5;
    for (uint64_t sector = first; sector <= last; ++sector) {
      uint64_t line = sector / kLineSectors, bit = 16u << sector % kLineSectors;
      uint32_t place = stream->count;
      while (place > begin && stream->items[place - 1] >> 8 != line) --place;
      if (place > begin) {
        stream->items[place - 1] |= bit;
      } else {
        *append(&stream->items, &stream->count, &stream->capacity) =
            line << 8 | bit | (uint64_t)bypasses_l1 << 3 | event;
      }
    }
  }
  caches->items += stream->count - begin;
  if (caches->items > kWaveItems) finish_wave(caches);
}
