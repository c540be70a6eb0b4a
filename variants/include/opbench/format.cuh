// The formats that tensor cores multiply. A kernel's macro PRODUCT is one of these names: Format::PRODUCT.
#pragma once

namespace opbench {

enum class Format { bf16, f16, tf32, tf32x3, tf32_corrected };

// Names from before Format was one enum, for kernels that use them.
typedef Format Operand, Precision;
constexpr Format bf16 = Format::bf16, f16 = Format::f16, tf32 = Format::tf32, tf32x3 = Format::tf32x3;
constexpr Format tf32_corrected = Format::tf32_corrected;

}  // namespace opbench
