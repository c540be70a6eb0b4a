"""Names of the C++ standard library that a kernel may use, and the headers that a text uses without including them."""

from __future__ import annotations

import re
from collections.abc import Iterable

STANDARD_NAMES = {
    "algorithm": """
        min max minmax clamp swap fill fill_n copy copy_n transform reverse find find_if count count_if
        lower_bound upper_bound binary_search equal min_element max_element all_of any_of none_of for_each
        generate rotate iter_swap partial_sort
    """,
    "array": "array get",
    "bit": "bit_cast popcount countl_zero countr_zero has_single_bit",
    "bitset": "bitset",
    "complex": "complex conj norm polar real imag arg",
    "functional": """
        plus minus multiplies divides modulus negate less greater less_equal greater_equal equal_to
        not_equal_to logical_and logical_or logical_not bit_and bit_or bit_xor invoke reference_wrapper ref
        cref hash
    """,
    "initializer_list": "initializer_list",
    "iterator": """
        iterator_traits begin end distance advance next prev reverse_iterator random_access_iterator_tag
        size data
    """,
    "limits": "numeric_limits",
    "numeric": "accumulate inner_product iota partial_sum gcd lcm reduce midpoint",
    "optional": "optional nullopt",
    "ratio": "ratio",
    "span": "span",
    "tuple": "tuple make_tuple get tie apply forward_as_tuple tuple_cat ignore",
    "type_traits": """
        integral_constant true_type false_type bool_constant is_same is_same_v is_integral is_integral_v
        is_floating_point is_floating_point_v is_arithmetic is_arithmetic_v is_signed is_signed_v
        is_unsigned is_unsigned_v is_pointer is_pointer_v is_void is_void_v is_const is_const_v is_array
        is_class is_enum is_reference is_base_of is_base_of_v is_convertible is_convertible_v
        is_trivially_copyable is_trivially_copyable_v is_constructible is_invocable is_invocable_v enable_if
        enable_if_t conditional conditional_t decay decay_t remove_reference remove_reference_t remove_cv
        remove_cv_t remove_const remove_const_t remove_pointer remove_pointer_t add_const add_pointer
        add_pointer_t make_signed make_signed_t make_unsigned make_unsigned_t underlying_type
        underlying_type_t common_type common_type_t void_t invoke_result invoke_result_t conjunction
        conjunction_v disjunction disjunction_v negation negation_v aligned_storage aligned_storage_t
        alignment_of rank extent is_empty is_final is_trivial is_standard_layout is_union is_function
        is_object is_scalar is_default_constructible is_destructible is_null_pointer
    """,
    "utility": """
        pair make_pair move forward swap declval exchange index_sequence make_index_sequence
        integer_sequence make_integer_sequence index_sequence_for in_place as_const
    """,
    "variant": "variant visit monostate holds_alternative",
}
"""Names that kernels may use and `cuda::std` has, by header; listed here because `cuda::std` differs under NVRTC."""

_HEADERS = {name: header for header, names in reversed(STANDARD_NAMES.items()) for name in names.split()}
_STD_NAME = re.compile(r"\bstd\s*::\s*(\w+)")


def implied_headers(texts: Iterable[str]) -> tuple[str, ...]:
    """Return standard headers whose names the texts use without including them: other headers included them."""
    all_text = "\n".join(texts)
    headers = {_HEADERS[name] for name in _STD_NAME.findall(all_text) if name in _HEADERS}
    return tuple(sorted(name for name in headers if not re.search(rf"#\s*include\s*<{name}>", all_text)))
