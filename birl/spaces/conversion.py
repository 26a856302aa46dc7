"""Conversion of users' values to arrays of numbers.

Datasets, policies, agents, writers, environments and estimators read values through `to_array`, so that all of them
take the same inputs: NumPy arrays of any byte order, tensors, lists, and the columns and tables of pandas, polars and
Arrow. Masked and missing values, and values that are not numbers, are refused by name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from birl.errors import DataError, ShapeError
from birl.types import Array, Tree, tree_map

if TYPE_CHECKING:
    from torch import Tensor

_ADVICE: Final = {
    "M": "subtract the first time and convert to seconds, such as (x - x[0]) / np.timedelta64(1, 's')",
    "m": "convert it to seconds, x / np.timedelta64(1, 's')",
    "c": "give its real and imaginary parts as two columns",
}
"""What to do with NumPy's kinds of dtypes that are not numbers."""

_USUAL: Final = frozenset(np.dtype(code) for code in "?bhilqBHILQefd")
"""The dtypes of bools and numbers in native byte order that torch has, too."""

_MISSING: Final = ("NoneType", "NAType", "NaTType")

Columns: TypeAlias = Mapping[str, tuple[str, ...]]
"""The names of the numbers in the arrays of a step that came as tables.

The arrays are ``observation``, or ``observation.robot.arm`` for a part of tuple and dict observations, and ``action``.
"""


def to_array(name: str, value: object, *, nan: bool = False) -> Array:
    """Convert ``value`` to an array of numbers or booleans in native byte order, without a copy where possible.

    Args:
        name: name of the value, for messages.
        value: an array, tensor, number, list, or column or table of pandas, polars or Arrow.
        nan: whether masked and missing values become NaN instead of an error.

    Raises:
        ShapeError: for values that are no numbers, and for lists of different lengths.
        DataError: if a value is masked or missing.
    """
    if type(value) is np.ndarray and value.dtype in _USUAL:
        return value
    array = _read(name, value, nan)
    kind = array.dtype.kind
    if kind == "O":
        array = _from_objects(name, array, nan)
    elif array.dtype.names is not None:
        raise ShapeError(
            f"the dtype of {name} is structured, with the fields {', '.join(array.dtype.names):.100}; it must be bool, "
            "integer or float: give np.lib.recfunctions.structured_to_unstructured(x) for one column for each field, "
            "or a dict of the fields for dict observations"
        )
    elif kind in "US":
        raise _text_error(name, array)
    elif kind not in "biuf":
        advice = _ADVICE.get(kind, f"convert it with np.asarray({name}, dtype=np.float32)")
        raise ShapeError(f"the dtype of {name} is {array.dtype}; it must be bool, integer or float: {advice}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # torch has no longer floats
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_missing(value: object) -> bool:
    """Return whether a value is ``None``, NaN, or the missing value of pandas."""
    return type(value).__name__ in _MISSING or (isinstance(value, float) and value != value)


def to_arrays(name: str, tree: Tree) -> Tree:
    """Apply `to_array` to every leaf of a tree."""
    return to_array(name, tree) if type(tree) is np.ndarray else tree_map(lambda leaf: to_array(name, leaf), tree)


def check_present(name: str, value: object) -> None:
    """Raise `DataError` for a masked array or a column with nulls, whose masks `numpy.asarray` would drop."""
    mask = _mask(value)
    if mask is not None and mask.any():
        raise _missing_error(name, np.argwhere(mask)[0].tolist(), isinstance(value, np.ma.MaskedArray))


def _mask(value: object) -> Array | None:
    """Return which values are masked or null; ``None`` if there is no mask."""
    if isinstance(value, np.ma.MaskedArray):
        return None if value.dtype.names is not None else np.ma.getmaskarray(value)
    library = type(value).__module__.partition(".")[0]
    if library in ("polars", "pyarrow") and hasattr(value, "is_null"):
        return np.asarray(value.is_null())
    # missing numbers of NumPy's dtypes in pandas are NaN, which check_finite() finds
    if library == "pandas" and hasattr(value, "isna") and not isinstance(getattr(value, "dtype", None), np.dtype):
        return np.asarray(value.isna())
    return None


def _missing_error(name: str, where: list[int], masked: bool = False) -> DataError:
    index = ", ".join(map(str, where))
    found = f"{name}[{index}]" if where else name
    return DataError(
        f"{found} is {'masked' if masked else 'missing (null)'}; every value must be known: fill it in, drop its "
        "episode, or end the episode before it"
    )


def _read(name: str, value: object, nan: bool) -> Array:
    """Return ``value`` as an array of any dtype."""
    if isinstance(value, np.ma.MaskedArray):
        data: Any = value.data
    elif isinstance(value, torch.Tensor):
        return _from_tensor(name, value)
    elif (columns := _columns(value)) is not None:
        return _from_columns(name, columns, nan)
    elif isinstance(value, list | tuple) and _holds_wrapped(value):
        return _stack(name, [to_array(f"{name}[{index}]", each, nan=nan) for index, each in enumerate(value)])
    else:
        data = value
    mask = _mask(value)
    if mask is not None and mask.any():
        if not nan:
            check_present(name, value)
        filled = np.array(data, np.float64 if isinstance(value, np.ma.MaskedArray) else object)
        filled[mask] = np.nan
        return filled
    try:
        array = np.asarray(_dense_column(data))
    except ValueError as error:
        raise ShapeError(f"{name} cannot be made one array ({error}): give all steps the same shape") from error
    except Exception as error:  # each library raises its own
        raise _not_an_array(name, value, str(error)) from error
    if array.dtype.kind == "O" and array.ndim == 0 and not isinstance(value, Decimal | Fraction | int):
        raise _not_an_array(name, value)
    return array


def _text_error(name: str, array: Array) -> ShapeError:
    return ShapeError(
        f"the dtype of {name} is {array.dtype}, text; it must be bool, integer or float: read the column as "
        f"numbers, or number the texts with np.unique({name}, return_inverse=True)[1]"
    )


def _not_an_array(name: str, value: object, why: str = "") -> ShapeError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    methods = {"toarray": "x.toarray()", "collect": "x.collect()", "__next__": "list(x)", "__iter__": "list(x)"}
    advice = next((call for method, call in methods.items() if hasattr(value, method)), "np.asarray(x)")
    reason = f" ({why:.200})" if why else ""
    return ShapeError(f"{name} is a {kind}{reason}; it must be an array of numbers: give {advice}")


def _from_tensor(name: str, tensor: Tensor) -> Array:
    if tensor.layout is not torch.strided:
        raise ShapeError(f"{name} is a sparse tensor; it must be dense: give x.to_dense()")
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # NumPy has no such dtype
        tensor = tensor.to(torch.float32)
    try:
        return np.asarray(tensor.cpu().numpy())
    except (TypeError, RuntimeError) as error:
        raise _not_an_array(name, tensor, str(error)) from error


def column_names(table: object) -> tuple[str, ...]:
    """Return the name of each number in a row of a table: its column's, or ``x[0]``, ``x[1]``, … for a column of lists.

    There are none, ``()``, for anything else than a table, and if labels are not text or not unique.
    """
    columns = _columns(table) if _labels(table) else None
    first = [(label, values.iloc[:1] if hasattr(values, "iloc") else values[:1]) for label, values in columns or ()]
    return tuple(name for label, values in first for name in number_names(label, to_array(label, values)))


def order_columns(
    name: str, value: object, names: tuple[str, ...], *, nan: bool = False, row: bool = False, renamed: bool = False
) -> object:
    """Return a table as an array whose columns have the order of ``names``.

    Anything else is returned unchanged, tables without names included.

    Args:
        name: name of the value, for messages.
        value: any value.
        names: the `column_names` of the table to compare with.
        nan: see `to_array`.
        row: whether the value is a single row, so that a Series with these labels is reordered, too.
        renamed: whether a table of which no column has one of these names is returned unchanged.

    Raises:
        ShapeError: if the table has other columns.
    """
    table: Any = value
    if row and hasattr(table, "to_frame") and hasattr(table, "index"):
        table = table.to_frame().T
    if not (labels := _labels(table)):
        return value
    lists = {each: each[: each.rindex("[")] for each in names if each.endswith("]") and "[" in each}
    given = set(labels)
    needed = list(dict.fromkeys(each if each in given else lists.get(each, each) for each in names))
    if given != set(needed):
        if renamed and not given & set(needed):
            return value
        raise _columns_error(name, table, labels, names, needed)
    columns = dict(zip(labels, (values for _, values in _columns(table) or []), strict=True))
    arrays = [to_array(f"{name}[{label!r:.60}]", columns[label], nan=nan) for label in needed]
    found = tuple(each for label, array in zip(needed, arrays, strict=True) for each in number_names(label, array))
    if sorted(found) != sorted(names):
        raise _columns_error(name, table, found, names, needed)
    array = np.concatenate([array.reshape(len(array), -1) for array in arrays], 1)
    if found != names:
        place = {each: index for index, each in enumerate(found)}
        array = array[:, [place[each] for each in names]]
    return array[0] if table is not value else array


def order_numbered_columns(name: str, value: object, numbers: range) -> object:
    """Return a table whose labels are ``numbers`` as an array whose columns have their order.

    Labels are numbers or their texts. Anything else is returned unchanged, tables with other labels included.

    Args:
        name: name of the value, for messages.
        value: any value, such as the probabilities of discrete actions.
        numbers: the numbers of all columns.
    """
    columns = {str(label): values for label, values in _columns(value) or ()}
    if not columns or len(columns) != len(numbers) or any(str(number) not in columns for number in numbers):
        return value
    return np.stack([to_array(f"{name}[{number}]", columns[str(number)]) for number in numbers], -1)


def _columns_error(
    name: str, table: object, found: tuple[str, ...], names: tuple[str, ...], needed: list[str]
) -> ShapeError:
    known = set(names), set(found)
    missing, further = [each for each in names if each not in known[1]], [x for x in found if x not in known[0]]
    parts = [("lacks", missing), ("also has", further)]
    different = " and ".join(f"{verb} {', '.join(each)!s:.200}" for verb, each in parts if each)
    if set(needed) <= set(found):
        select = f"{name}.select({needed})" if hasattr(table, "column_names") else f"{name}[{needed}]"
        advice = f"give {select:.300}"
    else:
        advice = "add or rename columns, or give an array of numbers in this order"
    return ShapeError(
        f"{name} is a table that {different}; its columns must be those of the data that were learned or stored, "
        f"{', '.join(names)!s:.300}: {advice}"
    )


def _labels(table: object) -> tuple[str, ...]:
    """Return the labels of the columns of a table, if all of them are different texts, else none."""
    labels = [label for label, _ in _columns(table) or ()]
    return tuple(labels) if len(set(labels)) == len(labels) and all(isinstance(each, str) for each in labels) else ()


def number_names(label: str, column: Array) -> list[str]:
    """Return the name of each number that a column ``[N, …]``, called ``label``, adds to a row."""
    return [label] if column.ndim == 1 else [f"{label}[{index}]" for index in range(math.prod(column.shape[1:]))]


def _columns(value: object) -> list[tuple[Any, Any]] | None:
    """Return the labels and columns of a table of pandas, polars or Arrow; ``None`` for anything else."""
    if isinstance(value, np.ndarray):
        return None
    table: Any = value
    if hasattr(table, "column_names") and hasattr(table, "columns"):  # Arrow
        return list(zip(table.column_names, table.columns, strict=True))
    if hasattr(table, "get_columns") and hasattr(table, "columns"):  # polars
        return list(zip(table.columns, table.get_columns(), strict=True))
    if hasattr(table, "iloc") and hasattr(table, "columns"):  # pandas
        return [(label, table.iloc[:, index]) for index, label in enumerate(table.columns)]
    return None


def _from_columns(name: str, columns: list[tuple[Any, Any]], nan: bool) -> Array:
    """Return the columns of a table as ``[N, number of columns]``; a column of lists takes several."""
    arrays = [to_array(f"{name}[{str(column)!r:.60}]", values, nan=nan) for column, values in columns]
    if not arrays:
        raise ShapeError(f"{name} is a table without columns: give one or more")
    label, count = Counter(label for label, _ in columns).most_common(1)[0]
    if count > 1:
        raise ShapeError(
            f"{name} is a table with {count} columns {label!r:.60}; names must be different: rename or drop the "
            "others, or give an array, table.to_numpy()"
        )
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], 1)


def _dense_column(value: Any) -> Any:
    """Return a column of a nullable dtype of pandas, in which nothing is missing, in NumPy's dtype."""
    plain = getattr(getattr(value, "dtype", None), "numpy_dtype", None)
    if isinstance(plain, np.dtype) and plain.kind in "biuf" and hasattr(value, "to_numpy"):
        return value.to_numpy(dtype=plain)
    return value


def _holds_wrapped(values: Iterable[object]) -> bool:
    """Return whether nested lists hold tensors or masked arrays, which NumPy reads slowly or without their masks."""
    kinds = set(map(type, values))
    if any(issubclass(kind, torch.Tensor | np.ma.MaskedArray) for kind in kinds):
        return True
    return bool(kinds & {list, tuple}) and any(
        _holds_wrapped(each) for each in values if isinstance(each, list | tuple)
    )


def _stack(name: str, arrays: list[Array]) -> Array:
    try:
        return np.stack(arrays)
    except ValueError as error:
        raise ShapeError(f"{name} cannot be made one array ({error}): give all steps the same shape") from error


def _from_objects(name: str, array: Array, nan: bool) -> Array:
    """Convert an array of objects that are numbers, or lists or arrays of numbers of the same shape."""
    values = array.ravel().tolist()
    kinds = set(map(type, values))
    if nan:
        values = [np.nan if type(each).__name__ in _MISSING else each for each in values]
        kinds = set(map(type, values))
    if kinds and all(issubclass(kind, list | tuple | np.ndarray | torch.Tensor) for kind in kinds):
        rows = _stack(name, [to_array(f"{name}[{index}]", each, nan=nan) for index, each in enumerate(values)])
        return rows.reshape(*array.shape, *rows.shape[1:])
    if kinds & {Decimal, Fraction}:
        values = [float(each) if isinstance(each, Decimal | Fraction) else each for each in values]
        kinds = set(map(type, values))
    if kinds and kinds <= {str, np.str_}:
        raise _text_error(name, array)
    if all(issubclass(kind, bool | int | float | np.number | np.bool_) for kind in kinds):
        numbers = np.array(values) if values else np.zeros(0)
        if numbers.dtype.kind in "biuf":
            return numbers.reshape(array.shape)
        kinds = {int}  # too large for 64 bits
    for index, each in enumerate(values):
        where = [int(axis) for axis in np.unravel_index(index, array.shape)] if array.ndim else []
        if type(each).__name__ in _MISSING:
            raise _missing_error(name, where)
        found = f"{name}[{', '.join(map(str, where))}]" if where else name
        if isinstance(each, int) and not -(2**63) <= each < 2**64:
            raise ShapeError(f"{found} is {each!s:.60}, which no integer of 64 bits can hold: give floats")
        if not isinstance(each, int | float | np.number | np.bool_):
            raise ShapeError(
                f"the dtype of {name} is object: {found} is {each!r:.60}, a {type(each).__name__}; it must be a bool, "
                f"integer or float: convert them with np.asarray({name}, dtype=np.float32) and give all steps the same "
                "shape"
            )
    raise ShapeError(f"{name} mixes integers below 0 with integers from 2**63 on: give floats")
