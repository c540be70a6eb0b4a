"""Arrays that are as picky as a device's: NumPy's functions take them, arrays of the host beside them are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Elsewhere(NDArrayOperatorsMixin):
    """An array that is not the host's, as CuPy's are not: nothing makes a NumPy array of it in passing."""

    __array_priority__ = 100

    def __init__(self, held: np.ndarray) -> None:
        self.held = held

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: Any) -> object:
        if method != "__call__":
            return NotImplemented
        return _wrapped(ufunc(*_held(inputs), **_held(options)))

    def __array_function__(self, function: Callable[..., Any], _: object, inputs: Any, options: Any) -> object:
        return _wrapped(function(*_held(inputs), **_held(options)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.held, name)
        return (lambda *a, **o: _wrapped(found(*_held(a), **_held(o)))) if callable(found) else _wrapped(found)

    def __getitem__(self, index: object) -> Any:
        return _wrapped(self.held[_held(index)])

    def __setitem__(self, index: Any, value: object) -> None:
        self.held[_held(index)] = _held(value)

    def __len__(self) -> int:
        return len(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)

    def __float__(self) -> float:
        return float(self.held)

    def __int__(self) -> int:
        return int(self.held)


def _held(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        return value.held
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, Mapping):
        return {key: _held(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return type(value)(_held(one) for one in value)
    return value


def _wrapped(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return Elsewhere(np.asarray(value))
    return type(value)(map(_wrapped, value)) if isinstance(value, list | tuple) and type(value) is not str else value
