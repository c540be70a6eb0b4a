"""Arrays that are as picky as a device's, and a CuPy of them: what NumPy does not take there CuPy does not either."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Foreign(NDArrayOperatorsMixin):
    """An array that NumPy's functions take but that, as CuPy's, is never made NumPy's without being asked."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__" or "where" in kwargs:
            raise TypeError(f"Wrong arguments {method} {kwargs}")
        return foreign(getattr(ufunc, method)(*native(strict(args)), **native(strict(kwargs))))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if "device" in kwargs:  # NumPy's full and ones hand it on to whoever is like=, and CuPy's take none
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument 'device'")
        return foreign(function(*native(strict(args)), **native(strict(kwargs))))

    def __getitem__(self, index: Any) -> Any:
        return foreign(self.array[native(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[native(index)] = native(strict(value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as __array_interface__, by which NumPy would help itself
            raise AttributeError(name)
        found = getattr(self.array, name)
        if callable(found):
            return lambda *args, **kwargs: foreign(found(*native(args), **native(kwargs)))
        return foreign(found)


def foreign(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(foreign, value))
    return Foreign(value) if isinstance(value, np.ndarray) else value


def strict(value: Any) -> Any:
    """The same; NumPy's arrays are refused, as CuPy refuses them beside its own."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else [value]:
        if isinstance(item, np.ndarray):
            raise TypeError("a NumPy array among foreign ones")
        if isinstance(item, (tuple, list)):
            strict(item)
    return value


def native(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(native, value))
    if isinstance(value, dict):
        return {key: native(item) for key, item in value.items()}
    return value.array if isinstance(value, Foreign) else value


def stand_in(free: int, calls: list[str]) -> Any:
    """A CuPy of such arrays."""

    def asarray(array: np.ndarray) -> Foreign:
        calls.append("to")
        return Foreign(array)

    def asnumpy(array: Foreign) -> np.ndarray:
        assert isinstance(array, Foreign)
        calls.append("from")
        return array.array

    pool = types.SimpleNamespace(free_all_blocks=lambda: calls.append("freed"))
    runtime = types.SimpleNamespace(memGetInfo=lambda: (free, free))
    return types.SimpleNamespace(
        asarray=asarray,
        asnumpy=asnumpy,
        ascontiguousarray=lambda array: Foreign(np.ascontiguousarray(array.array)),
        ndarray=Foreign,
        cuda=types.SimpleNamespace(runtime=runtime),
        get_default_memory_pool=lambda: pool,
    )


def no_cupy() -> None:
    """Where it is not, or sees no device."""
