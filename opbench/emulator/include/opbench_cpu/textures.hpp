// Implements one- and two-dimensional textures and surfaces in the memory of a tensor.
#pragma once

typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;
enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };

template <class T>
struct opb_texel {
  typedef T scalar;
  static constexpr unsigned count = 1;
  static T made(const scalar* v) { return v[0]; }
  static void parts(const T& value, scalar* v) { v[0] = value; }
};
#define OPB_TEXEL(SCALAR, NAME)                                                                        \
  template <>                                                                                          \
  struct opb_texel<NAME##1> {                                                                          \
    typedef SCALAR scalar;                                                                             \
    static constexpr unsigned count = 1;                                                               \
    static NAME##1 made(const scalar* v) { return {v[0]}; }                                            \
  };                                                                                                   \
  template <>                                                                                          \
  struct opb_texel<NAME##2> {                                                                          \
    typedef SCALAR scalar;                                                                             \
    static constexpr unsigned count = 2;                                                               \
    static NAME##2 made(const scalar* v) { return {v[0], v[1]}; }                                      \
  };                                                                                                   \
  template <>                                                                                          \
  struct opb_texel<NAME##4> {                                                                          \
    typedef SCALAR scalar;                                                                             \
    static constexpr unsigned count = 4;                                                               \
    static NAME##4 made(const scalar* v) { return {v[0], v[1], v[2], v[3]}; }                          \
  };
OPB_TEXEL(float, float)
OPB_TEXEL(int, int)
OPB_TEXEL(unsigned, uint)
OPB_TEXEL(unsigned char, uchar)
#undef OPB_TEXEL

// Returns a copy of the description of an object, if the object is of this kind. A copy, because on a GPU kernels cannot
// access the description.
OPB_UNSEEN static opb_texture opb_texture_of(unsigned long long object, bool surface, unsigned dimensions,
                                                unsigned memory, const char* what, const char* file, unsigned line) {
  const opb_texture* texture = (const opb_texture*)object;
  char message[160] = "";
  if (!texture || texture->magic != opb_texture_magic) {
    snprintf(message, sizeof message, "%s: no texture or surface of the header's textures or surfaces", what);
  } else if (texture->surface != surface || texture->dimensions != dimensions || texture->memory != memory) {
    snprintf(message, sizeof message, "%s reads a %s %s of %u dimension%s, this is a %s %s of %u", what,
             memory ? "linear" : "plain", surface ? "surface" : "texture", dimensions, dimensions > 1 ? "s" : "",
             texture->memory ? "linear" : "plain", texture->surface ? "surface" : "texture", texture->dimensions);
  }
  if (message[0]) opb_trap(message, file, line);
  return *texture;
}

template <class T>
static inline T opb_texel_at(const opb_texture& texture, long column, long row, unsigned channel) {
  const long place = (row * texture.width + column) * texture.channels + channel;
  switch (texture.type) {
    case OPB_TEXEL_F32: return (T)((const float*)texture.start)[place];
    case OPB_TEXEL_I32: return (T)((const int*)texture.start)[place];
    case OPB_TEXEL_F16: return (T)opb_half_format::widen(((const unsigned short*)texture.start)[place]);
    default: {
      const unsigned char value = ((const unsigned char*)texture.start)[place];
      return texture.read ? (T)(value / 255.0f) : (T)value;
    }
  }
}

// Returns a texel's index along one dimension; -1 beyond a border.
static inline long opb_texel_place(long place, long size, unsigned address) {
  if (place >= 0 && place < size) return place;
  if (address == OPB_ADDRESS_BORDER) return -1;
  if (address == OPB_ADDRESS_WRAP) return (place % size + size) % size;
  if (address == OPB_ADDRESS_MIRROR) {
    const long twice = (place % (2 * size) + 2 * size) % (2 * size);
    return twice < size ? twice : 2 * size - 1 - twice;
  }
  return place < 0 ? 0 : size - 1;
}

template <class T>
static inline T opb_texel_or_zero(const opb_texture& texture, long column, long row, unsigned channel) {
  column = opb_texel_place(column, texture.width, texture.address);
  row = opb_texel_place(row, texture.height, texture.address);
  return column < 0 || row < 0 ? T() : opb_texel_at<T>(texture, column, row, channel);
}

// The weights of a filter have eight fractional bits.
static inline float opb_texel_weight(float fraction) { return floorf(fraction * 256.0f + 0.5f) / 256.0f; }

template <class T>
static inline T opb_filtered(const opb_texture& texture, float x, float y, bool flat) {
  typedef typename opb_texel<T>::scalar scalar;
  if (texture.normalized) x *= texture.width, y *= texture.height;
  scalar values[4] = {};
  for (unsigned channel = 0; channel < opb_texel<T>::count && channel < texture.channels; ++channel) {
    if (!texture.filter) {
      values[channel] =
          opb_texel_or_zero<scalar>(texture, (long)floorf(x), flat ? 0 : (long)floorf(y), channel);
      continue;
    }
    const float left = floorf(x - 0.5f), above = flat ? 0.0f : floorf(y - 0.5f);
    const float across = opb_texel_weight(x - 0.5f - left), down = flat ? 0.0f : opb_texel_weight(y - 0.5f - above);
    float sum = 0.0f;
    for (int step = 0; step < (flat ? 2 : 4); ++step) {
      const float weight = (step & 1 ? across : 1.0f - across) * (step & 2 ? down : 1.0f - down);
      sum += weight * opb_texel_or_zero<float>(texture, (long)left + (step & 1), (long)above + (step >> 1), channel);
    }
    values[channel] = (scalar)sum;
  }
  return opb_texel<T>::made(values);
}

template <class T>
static inline T tex1Dfetch(cudaTextureObject_t object, int place, OPB_SITE) {
  const opb_texture texture = opb_texture_of(object, false, 1, 1, "tex1Dfetch", file, line);
  typename opb_texel<T>::scalar values[4] = {};
  for (unsigned channel = 0; channel < opb_texel<T>::count && channel < texture.channels; ++channel) {
    const bool inside = place >= 0 && (unsigned)place < texture.width;  // beyond it a GPU reads zeros
    if (inside) values[channel] = opb_texel_at<typename opb_texel<T>::scalar>(texture, place, 0, channel);
  }
  return opb_texel<T>::made(values);
}
template <class T>
static inline T tex1D(cudaTextureObject_t object, float x, OPB_SITE) {
  return opb_filtered<T>(opb_texture_of(object, false, 1, 0, "tex1D", file, line), x, 0.0f, true);
}
template <class T>
static inline T tex2D(cudaTextureObject_t object, float x, float y, OPB_SITE) {
  return opb_filtered<T>(opb_texture_of(object, false, 2, 0, "tex2D", file, line), x, y, false);
}

#define OPB_TEXTURE_TO(NAME, PARAMETERS, ARGUMENTS)                                          \
  template <class T>                                                                         \
  static inline void NAME(T* to, PARAMETERS, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) { \
    *to = NAME<T>(ARGUMENTS, file, line);                                                    \
  }
#define OPB_COMMA ,
OPB_TEXTURE_TO(tex1Dfetch, cudaTextureObject_t o OPB_COMMA int i, o OPB_COMMA i)
OPB_TEXTURE_TO(tex1D, cudaTextureObject_t o OPB_COMMA float x, o OPB_COMMA x)
OPB_TEXTURE_TO(tex2D, cudaTextureObject_t o OPB_COMMA float x OPB_COMMA float y, o OPB_COMMA x OPB_COMMA y)
#undef OPB_COMMA
#undef OPB_TEXTURE_TO

// Returns the address of a surface's texel, with columns counted in bytes; null if there is nothing to access.
template <class T>
static inline T* opb_surface_place(cudaSurfaceObject_t object, int x, int y, unsigned dimensions,
                                   cudaSurfaceBoundaryMode mode, const char* what, const char* file, unsigned line) {
  const opb_texture surface = opb_texture_of(object, true, dimensions, 0, what, file, line);
  const unsigned scalars[] = {4, 4, 1, 2}, bytes = scalars[surface.type] * surface.channels;
  const int row_bytes = (int)(surface.width * bytes), rows = (int)surface.height;
  char message[200];
  if (sizeof(T) != bytes || x % (int)bytes) {
    snprintf(message, sizeof message, "%s: %u bytes at byte %d of a row; texels have %u bytes, and x counts bytes", what,
             (unsigned)sizeof(T), x, bytes);
    opb_trap(message, file, line);
  }
  if (x < 0 || y < 0 || x >= row_bytes || y >= rows) {
    if (mode == cudaBoundaryModeZero) return nullptr;
    if (mode == cudaBoundaryModeTrap) {
      snprintf(message, sizeof message, "%s: out of bounds: byte %d of row %d of a surface of %d bytes and %d rows", what, x, y,
               row_bytes, rows);
      opb_trap(message, file, line);
    }
    x = x < 0 ? 0 : x >= row_bytes ? row_bytes - (int)bytes : x;
    y = y < 0 ? 0 : y >= rows ? rows - 1 : y;
  }
  return (T*)((char*)surface.start + (long)y * row_bytes + x);
}

template <class T>
static inline T surf1Dread(cudaSurfaceObject_t o, int x, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap, OPB_SITE) {
  const T* place = opb_surface_place<T>(o, x, 0, 1, mode, "surf1Dread", file, line);
  return place ? *place : T();
}
template <class T>
static inline T surf2Dread(cudaSurfaceObject_t o, int x, int y, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap,
                           OPB_SITE) {
  const T* place = opb_surface_place<T>(o, x, y, 2, mode, "surf2Dread", file, line);
  return place ? *place : T();
}
template <class T>
static inline void surf1Dread(T* to, cudaSurfaceObject_t o, int x, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap,
                              OPB_SITE) {
  *to = surf1Dread<T>(o, x, mode, file, line);
}
template <class T>
static inline void surf2Dread(T* to, cudaSurfaceObject_t o, int x, int y,
                              cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap, OPB_SITE) {
  *to = surf2Dread<T>(o, x, y, mode, file, line);
}
// Writes beyond the surface are ignored unless the mode is trap or clamp.
template <class T>
static inline void surf1Dwrite(T value, cudaSurfaceObject_t o, int x, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap,
                               OPB_SITE) {
  if (T* place = opb_surface_place<T>(o, x, 0, 1, mode, "surf1Dwrite", file, line)) *place = value;
}
template <class T>
static inline void surf2Dwrite(T value, cudaSurfaceObject_t o, int x, int y,
                               cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap, OPB_SITE) {
  if (T* place = opb_surface_place<T>(o, x, y, 2, mode, "surf2Dwrite", file, line)) *place = value;
}
