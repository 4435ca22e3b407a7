"""Columns of numbers as text: what Java's `toString` makes of them, which Spark's to_json and casts write.

A double is the shortest text that is read as the same double, as since Java 19; older ones write a few doubles with
more digits. Vectorised: Arrow's own texts are brought to Java's notation.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SMALL: Final = np.array([10.0**-k for k in range(30, 2, -1)])
"""1e-30 to 1e-3; Arrow writes what is below 1e-6 or so with an exponent."""
_LARGE: Final = np.array([10.0**k for k in range(31)])
_PLAIN: Final = 1e-3, 1e7
"""From the first to below the second Java writes no exponent."""


def float_texts(column: pa.Array) -> pa.Array:
    """float or double as text (string); null where it is null. NaN, Infinity and -Infinity are words."""
    texts = column.cast(pa.string())
    values = np.abs(column.fill_null(1.0).to_numpy(zero_copy_only=False))
    is_plain = ((values >= _PLAIN[0]) & (values < _PLAIN[1])) | (values == 0)
    if is_plain.all():
        return _with_fraction(texts)
    odd = pa.array(~is_plain)
    made = pc.if_else(odd, None, _with_fraction(texts))
    return pc.replace_with_mask(made, odd, _scientific(column.filter(odd), texts.filter(odd), values[~is_plain]))


def _with_fraction(texts: pa.Array) -> pa.Array:
    """`1` is `1.0`; NaN and the like may be among them and become nonsense."""
    whole = pc.invert(pc.match_substring(texts, "."))
    if not pc.any(whole).as_py():
        return texts
    return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)


def _scientific(column: pa.Array, texts: pa.Array, values: np.ndarray) -> pa.Array:
    """Numbers of Arrow's notation (`1e+20`, `12345678.5`, `0.00012`) in Java's (`1.0E20`), and the words."""
    is_word = ~np.isfinite(values)
    with_exponent = pc.match_substring(texts, "e")
    small, large = _SMALL.astype(values.dtype), _LARGE.astype(values.dtype)
    exponents = np.where(
        values >= 1, np.searchsorted(large, values, "right") - 1, np.searchsorted(small, values, "right") - 31
    )
    digits = pc.replace_substring_regex(texts, r"^(-?)0\.0*", r"\1")
    digits = pc.replace_substring(digits, ".", "")
    digits = pc.replace_substring_regex(digits, r"^(-?\d)", r"\1.")
    digits = pc.ascii_rtrim(digits, "0")
    digits = pc.if_else(pc.ends_with(digits, "."), pc.binary_join_element_wise(digits, "0", ""), digits)
    moved = pc.binary_join_element_wise(digits, pa.array(exponents).cast(pa.string()), "E")
    written = pc.replace_substring_regex(texts, "e[+]?", "E")
    written = pc.replace_substring_regex(written, r"^(-?\d)E", r"\1.0E")
    made = pc.if_else(with_exponent, written, moved)
    if is_word.any():
        signs = pc.if_else(pc.starts_with(texts, "-"), "-Infinity", "Infinity")
        words = pc.if_else(pc.is_nan(column), "NaN", signs)
        made = pc.if_else(pa.array(is_word), words, made)
    return _least_numbers(made, column)


def _least_numbers(texts: pa.Array, column: pa.Array) -> pa.Array:
    """Where one digit would do for a number near the smallest, Java takes the nearest number of two: 4.9E-324."""
    least = np.finfo(np.float32 if pa.types.is_float32(column.type) else np.float64)
    values = column.to_numpy(zero_copy_only=False)
    tiny = np.flatnonzero(np.abs(values) < least.smallest_normal)
    if not len(tiny):
        return texts
    found = texts.to_pylist()
    for row in tiny.tolist():
        if found[row].rstrip("-0123456789").endswith(".0E"):
            mantissa, _, exponent = f"{float(values[row]):.1e}".partition("e")
            found[row] = f"{mantissa}E{int(exponent)}"
    return pa.array(found, pa.string())


def decimal_texts(column: pa.Array, *, plain: bool) -> pa.Array:
    """As BigDecimal's toString (`0E-10`), or without an exponent if `plain`."""
    texts = column.cast(pa.string())
    if not plain or column.type.scale <= 6:
        return texts
    odd = pc.fill_null(pc.match_substring(texts, "E"), False)
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(texts, odd, _without_exponent(texts.filter(odd), column.type.scale))


def _without_exponent(texts: pa.Array, scale: int) -> pa.Array:
    """`-1.23E-7` at scale 9 is `-0.000000123`."""
    digits = pc.replace_substring(pc.replace_substring_regex(texts, r"^-?(\d)\.?(\d*)E.*$", r"\1\2"), "-", "")
    signs = pc.if_else(pc.starts_with(texts, "-"), "-0.", "0.")
    return pc.binary_join_element_wise(signs, pc.utf8_lpad(digits, scale, "0"), "")
