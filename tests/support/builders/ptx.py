"""The start of a kernel in PTX, for tests that write its instructions by hand."""

from __future__ import annotations


def kernel_head(*parameter_types: str) -> str:
    """Return the start of the entry `kernel` with parameters of these types, registers and a shared array `tile`."""
    parameters = ",\n".join(f"\t.param .{kind} kernel_param_{number}" for number, kind in enumerate(parameter_types))
    return f"""\
.version 7.8
.target sm_80
.address_size 64

.visible .entry kernel(
{parameters}
)
{{
\t.reg .pred \t%p<9>;
\t.reg .b16 \t%rs<9>;
\t.reg .f32 \t%f<40>;
\t.reg .b32 \t%r<60>;
\t.reg .f64 \t%fd<9>;
\t.reg .b64 \t%rd<40>;
\t.loc\t1 1 0
\t// demoted variable
\t.shared .align 16 .b8 tile[8192];
"""
