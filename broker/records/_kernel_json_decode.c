/* JSON objects to Arrow columns, called by spark_connector/formats/json_batches.py. See _kernel_columns.h.
 *
 * What is accepted is what Python's json and json_decoder.py read alike; a field that comes twice, a number or text that
 * its column cannot take as it is, or anything else that is rare, is refused. Fields without a column are checked to be
 * JSON and passed over, however deep they are.
 *
 * Records mostly have the keys of the record before, in its order: each object's keys are remembered as they come
 * (`slot_t`), and a key is compared with the one that followed last time before it is looked up. */
#include "_kernel_json_tokens.h"

#include <stdlib.h>

/* What becomes of a value. The numbers are those of `_Op` in json_batches.py. */
enum { NEVER, BOOLEAN, INTEGER, FLOAT, DOUBLE, DECIMAL, STRING, DATE, INSTANT, LOCAL_TIME, OBJECT, ARRAY, MAP, OPS };
/* A line of the program for each column: its op, two operands (of DECIMAL the limit, see append_decimal), the scale, and
 * where its name lies in the bytes that follow the lines. */
enum { OP, OPERANDS, SCALE = OPERANDS + 2, NAME, NAME_END, LINE_WIDTH };

/* The kind of an op's column; ANY: checked by itself. */
static const int KIND_OF[OPS] = {ANY,      BITS,  ANY,   WORDS,  LONGS, DECIMALS, TEXTS,
                                 WORDS, LONGS, LONGS, STRUCT, LIST,  LIST};
enum { SLOTS = 64 };
static const int64_t NONE = -1, US_OF_DAY = 86400000000;

typedef struct {
    bytes_at key;
    int64_t size, column; /* NONE: nobody wants it */
} slot_t;

/* The keys of an object's last rows, in the order in which they came first. */
typedef struct {
    slot_t slots[SLOTS];
    int count;
} keys_t;

typedef struct {
    decoder_t base;
    keys_t *keys; /* of each column that is an OBJECT */
    uint8_t *scratch;
    int64_t room;
} json_t;

static int need_scratch(json_t *j, int64_t size)
{
    if (size <= j->room)
        return GOOD;
    uint8_t *scratch = realloc(j->scratch, (size_t)(2 * size));
    if (scratch == NULL)
        return REFUSED;
    j->scratch = scratch;
    j->room = 2 * size;
    return GOOD;
}

/* ---- numbers to columns --------------------------------------------------------------------------------------- */

/* As Python's float() reads the text. */
static int read_slowly(json_t *j, const number_t *n, double *value)
{
    int64_t size = n->end - n->from;
    TRY(need_scratch(j, size + 1));
    memcpy(j->scratch, n->from, (size_t)size);
    j->scratch[size] = 0;
    PyGILState_STATE held = PyGILState_Ensure();
    *value = PyOS_string_to_double((const char *)j->scratch, NULL, NULL);
    int failed = PyErr_Occurred() != NULL;
    PyErr_Clear();
    PyGILState_Release(held);
    return failed ? REFUSED : GOOD;
}

enum { FARTHEST = 27 }; /* 5 ** 27 has 63 bits */

/* The number, rounded to `bits` (half to even), if it has few digits and a small exponent. The product with a power of
 * five is exact; the quotient has at least 63 bits, and what is left of it says on which side of a half it lies. */
static int round_exactly(const number_t *n, int bits, double *value)
{
#ifdef __SIZEOF_INT128__
    typedef unsigned __int128 wide_t;
    int away = (int)(n->exponent < 0 ? -n->exponent : n->exponent), power, left;
    uint64_t top, fives = 1;
    if (n->count > MOST_DIGITS || n->exponent < -FARTHEST || n->exponent > FARTHEST || n->digits == 0)
        return 0;
    for (int i = 0; i < away; i++)
        fives *= 5;
    if (n->exponent < 0) {
        int up = __builtin_clzll(n->digits), by = __builtin_clzll(fives);
        wide_t whole = (wide_t)(n->digits << up) << 63;
        top = (uint64_t)(whole / (fives << by));
        left = whole % (fives << by) != 0;
        power = by - up - 63 - away;
    }
    else {
        wide_t whole = (wide_t)n->digits * fives;
        int up = whole >> 64 ? __builtin_clzll((uint64_t)(whole >> 64)) : 64;
        top = (uint64_t)(whole << up >> 64);
        left = (uint64_t)(whole << up) != 0;
        power = 64 - up + away;
    }
    int up = __builtin_clzll(top), drop = 64 - bits;
    top <<= up;
    uint64_t kept = top >> drop, rest = top << bits, half = (uint64_t)1 << 63, scale = (uint64_t)(1023 + power - up + drop) << 52;
    kept += rest > half || (rest == half && (left || kept & 1));
    memcpy(value, &scale, 8);
    *value *= (double)kept;
    if (n->is_negative)
        *value = -*value;
    return 1;
#else
    return 0;
#endif
}

static int append_real(json_t *j, sink_t *s, const number_t *n)
{
    static const double TENS[] = {1,    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    double value;
    int bits = s->kind == LONGS ? 53 : 24;
    /* Two exact numbers: the result is rounded once. -0 is 0, as an integer. */
    if (n->digits <= (uint64_t)1 << 53 && n->count <= MOST_DIGITS && n->exponent >= -22 && n->exponent <= 22 && (bits == 53 || n->digits == 0)) {
        value = n->exponent < 0 ? (double)n->digits / TENS[-n->exponent] : (double)n->digits * TENS[n->exponent];
        value = n->is_negative && !(n->is_whole && n->digits == 0) ? -value : value;
    }
    else if (!round_exactly(n, bits, &value))
        TRY(read_slowly(j, n, &value));
    return bits == 53 ? append_double(&j->base, s, value) : append_float(&j->base, s, (float)value);
}

static int append_integer(decoder_t *d, sink_t *s, const number_t *n)
{
    int width = WIDTHS[s->kind];
    uint64_t most = ((uint64_t)1 << (8 * width - 1)) - 1 + (uint64_t)n->is_negative;
    if (!n->is_whole || n->count > MOST_DIGITS || n->digits > most)
        return REFUSED;
    uint64_t number = n->is_negative ? 0 - n->digits : n->digits;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    number <<= 64 - 8 * width;
#endif
    return append_number(d, s, &number, width);
}

/* With the digits behind the scale rounded, half away from zero. */
static int append_rounded(decoder_t *d, sink_t *s, const number_t *n, const int64_t *line)
{
#ifdef __SIZEOF_INT128__
    unsigned __int128 number = 0;
    int64_t places = 0, has_point = 0, up = 0, digits = 0;
    if (n->has_exponent || n->end - n->from > 1000)
        return REFUSED;
    for (bytes_at p = n->from + n->is_negative; p < n->end; p++) {
        if (*p == '.')
            has_point = 1;
        else if (has_point && places == line[SCALE]) {
            up = *p >= '5';
            break;
        }
        else {
            number = number * 10 + (unsigned)(*p - '0');
            places += has_point;
            digits += number != 0;
        }
        if (digits > 38)
            return REFUSED;
    }
    for (; places < line[SCALE]; places++, digits += number != 0)
        number *= 10;
    if (digits > 38)
        return REFUSED;
    number += (unsigned)up;
    if (n->is_negative)
        number = 0 - number;
    return append_decimal(d, s, (uint64_t)(number >> 64), (uint64_t)number, line + OPERANDS);
#else
    return REFUSED;
#endif
}

/* ---- dates and times ------------------------------------------------------------------------------------------ */

/* `size` digits as a number, which moves p behind them; -1 if they are none. */
static inline int64_t fixed(bytes_at *p, bytes_at end, int size)
{
    int64_t number = 0;
    if (end - *p < size)
        return -1;
    for (int i = 0; i < size; i++, ++*p) {
        if ((uint8_t)(**p - '0') > 9)
            return -1;
        number = number * 10 + (**p - '0');
    }
    return number;
}

static inline int next_is(bytes_at *p, bytes_at end, uint8_t byte)
{
    if (*p >= end || **p != byte)
        return 0;
    ++*p;
    return 1;
}

/* yyyy-MM-dd as days since 1970; 0, or -1. */
static int take_date(bytes_at *p, bytes_at end, int64_t first_year, int64_t *days)
{
    static const int8_t DAYS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t year = fixed(p, end, 4), month = next_is(p, end, '-') ? fixed(p, end, 2) : -1;
    int64_t day = next_is(p, end, '-') ? fixed(p, end, 2) : -1;
    if (year < first_year || month < 1 || month > 12 || day < 1)
        return -1;
    int is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day > DAYS[month - 1] + (month == 2 && is_leap))
        return -1;
    /* years from March on, so that the leap day is the last; the first of them begins 400 years early */
    int64_t from_march = year + 400 - (month <= 2), of_year = (153 * (month + (month <= 2 ? 9 : -3)) + 2) / 5 + day - 1;
    *days = from_march * 365 + from_march / 4 - from_march / 100 + from_march / 400 + of_year - 719468 - 146097;
    return 0;
}

/* yyyy-MM-dd, and HH:mm:ss with a fraction and, if it may have one, a zone, as microseconds since 1970; 0, or -1. */
static int take_time(bytes_at p, bytes_at end, int may_have_zone, int64_t *micros)
{
    int64_t days, fraction = 0;
    if (take_date(&p, end, 1, &days) < 0)
        return -1;
    *micros = days * US_OF_DAY;
    if (p == end)
        return 0;
    if (*p != 'T' && *p != ' ')
        return -1;
    p++;
    int64_t hour = fixed(&p, end, 2), minute = next_is(&p, end, ':') ? fixed(&p, end, 2) : -1;
    int64_t second = next_is(&p, end, ':') ? fixed(&p, end, 2) : -1;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59)
        return -1;
    if (next_is(&p, end, '.')) {
        bytes_at from = p;
        for (int64_t unit = 100000; p < end && (uint8_t)(*p - '0') <= 9; p++, unit /= 10)
            fraction += (*p - '0') * unit;
        if (p == from)
            return -1;
    }
    *micros += ((hour * 60 + minute) * 60 + second) * 1000000 + fraction;
    if (p == end)
        return 0;
    if (!may_have_zone)
        return -1;
    if (next_is(&p, end, 'Z'))
        return p == end ? 0 : -1;
    int64_t sign = *p == '+' ? 1 : *p == '-' ? -1 : 0;
    p++;
    hour = fixed(&p, end, 2);
    minute = p == end ? 0 : (next_is(&p, end, ':'), fixed(&p, end, 2));
    if (sign == 0 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || p != end)
        return -1;
    *micros -= sign * (hour * 60 + minute) * 60000000;
    return 0;
}

/* ---- values --------------------------------------------------------------------------------------------------- */

/* Any value, which nobody wants. What is open is a bit each of `scratch`: whether it is an object. */
static int pass_value(json_t *j)
{
    decoder_t *d = &j->base;
    number_t number;
    int64_t depth = 0;
    for (;;) {
        int is_open = 0;
        pass_space(d);
        if (d->p >= d->end)
            return REFUSED;
        switch (*d->p) {
        case '{':
        case '[': {
            int is_object = *d->p++ == '{';
            if (comes(d, is_object ? '}' : ']'))
                break;
            TRY(need_scratch(j, depth / 8 + 1));
            set_bit(j->scratch, depth++, is_object);
            is_open = 1;
            break;
        }
        case '"':
            d->p++;
            TRY(pass_text(d));
            break;
        case 't':
            TRY(take_word(d, "true", 4));
            break;
        case 'f':
            TRY(take_word(d, "false", 5));
            break;
        case 'n':
            TRY(take_word(d, "null", 4));
            break;
        default:
            TRY(take_number(d, &number));
        }
        for (; !is_open; depth--) {
            if (depth == 0)
                return GOOD;
            if (comes(d, ','))
                break;
            if (!comes(d, get_bit(j->scratch, depth - 1) ? '}' : ']'))
                return REFUSED;
        }
        if (get_bit(j->scratch, depth - 1)) {
            if (!comes(d, '"'))
                return REFUSED;
            TRY(pass_text(d));
            if (!comes(d, ':'))
                return REFUSED;
        }
    }
}

static int take_value(json_t *j, int64_t at);

static int append_plain(json_t *j, sink_t *s, const text_t *t)
{
    decoder_t *d = &j->base;
    if (!t->has_escapes)
        return append_text(d, s, t->from, t->size);
    TRY(need_scratch(j, t->size));
    int64_t size = unescape(t, j->scratch);
    if (size < 0)
        return REFUSED;
    TRY(needs_row(d, s));
    if (size > s->room - s->used) {
        d->full = 2 * (s - d->sinks) + 1;
        return FULL;
    }
    memcpy(s->more + s->used, j->scratch, (size_t)size);
    s->used += size;
    ((int32_t *)s->main)[s->rows + 1] = (int32_t)s->used;
    end_row(s);
    return GOOD;
}

/* The child with the name, or NONE. */
static int64_t look_up(const json_t *j, const sink_t *s, bytes_at key, int64_t size)
{
    const decoder_t *d = &j->base;
    for (int64_t child = s - d->sinks + 1; child < s->end; child = d->sinks[child].end) {
        const int64_t *line = d->code + child * LINE_WIDTH;
        if (line[NAME_END] - line[NAME] == size && memcmp((bytes_at)d->code + line[NAME], key, (size_t)size) == 0)
            return child;
    }
    return NONE;
}

static inline int is_same(bytes_at a, bytes_at b, int64_t size)
{
    uint64_t one, other;
    for (; size >= 8; a += 8, b += 8, size -= 8) {
        memcpy(&one, a, 8);
        memcpy(&other, b, 8);
        if (one != other)
            return 0;
    }
    while (size > 0 && *a == *b)
        a++, b++, size--;
    return size == 0;
}

/* A key, behind its opening quote, and which child it names, or NONE. `*next`: the slot of the key that is expected. */
static inline int take_key(json_t *j, const sink_t *s, int *next, int64_t *child)
{
    decoder_t *d = &j->base;
    keys_t *keys = &j->keys[s - d->sinks];
    const slot_t *slot = &keys->slots[*next];
    text_t t;
    if (*next < keys->count && d->end - d->p > slot->size && is_same(d->p, slot->key, slot->size + 1)) {
        d->p += slot->size + 1; /* with the closing quote */
        *child = slot->column;
        ++*next;
        return GOOD;
    }
    TRY(take_text(d, &t));
    for (int i = 0; i < keys->count; i++)
        if (keys->slots[i].size == t.size && is_same(keys->slots[i].key, t.from, t.size)) {
            *child = keys->slots[i].column;
            *next = i + 1;
            return GOOD;
        }
    bytes_at name = t.from;
    int64_t size = t.size;
    if (t.has_escapes) {
        TRY(need_scratch(j, size));
        name = j->scratch;
        size = unescape(&t, j->scratch);
        if (size < 0)
            return REFUSED;
    }
    *child = look_up(j, s, name, size);
    if (keys->count < SLOTS) {
        keys->slots[keys->count++] = (slot_t){t.from, t.size, *child};
        *next = keys->count;
    }
    return GOOD;
}

static int take_object(json_t *j, int64_t at)
{
    decoder_t *d = &j->base;
    sink_t *s = d->sinks + at;
    int next = 0;
    int64_t child;
    TRY(needs_row(d, s));
    if (!comes(d, '}'))
        for (;;) {
            if (!comes(d, '"'))
                return REFUSED;
            TRY(take_key(j, s, &next, &child));
            if (!comes(d, ':'))
                return REFUSED;
            if (child == NONE)
                TRY(pass_value(j));
            else if (d->sinks[child].rows > s->rows)
                return REFUSED; /* twice */
            else
                TRY(take_value(j, child));
            if (comes(d, '}'))
                break;
            if (!comes(d, ','))
                return REFUSED;
        }
    for (child = at + 1; child < s->end; child = d->sinks[child].end)
        if (d->sinks[child].rows == s->rows)
            TRY(append_null(d, d->sinks + child));
    end_row(s);
    return GOOD;
}

/* An array, or with `keys` an object, to a list. */
static int take_items(json_t *j, sink_t *s, int64_t item, sink_t *keys)
{
    decoder_t *d = &j->base;
    uint8_t close = keys == NULL ? ']' : '}';
    int64_t first = s[1].rows;
    text_t key;
    TRY(needs_row(d, s));
    if (!comes(d, close))
        for (;;) {
            if (keys != NULL) {
                if (!comes(d, '"'))
                    return REFUSED;
                TRY(take_text(d, &key));
                TRY(append_plain(j, keys, &key));
                if (!comes(d, ':'))
                    return REFUSED;
            }
            TRY(take_value(j, item));
            if (comes(d, close))
                break;
            if (!comes(d, ','))
                return REFUSED;
        }
    if (keys != NULL && has_twice(keys, first))
        return REFUSED;
    ((int32_t *)s->main)[s->rows + 1] = (int32_t)s[1].rows;
    end_row(s);
    return GOOD;
}

/* Texts in a column of another type: only dates, times and decimals have them. */
static int take_from_text(json_t *j, sink_t *s, const int64_t *line)
{
    decoder_t *d = &j->base;
    text_t t;
    number_t n;
    int64_t number;
    TRY(take_text(d, &t));
    if (line[OP] == STRING)
        return append_plain(j, s, &t);
    bytes_at p = t.from, end = p + t.size, after = d->p;
    switch (line[OP]) {
    case DATE:
        if (take_date(&p, end, 0, &number) < 0 || p != end)
            return REFUSED;
        return append_word(d, s, (uint32_t)number);
    case INSTANT:
    case LOCAL_TIME:
        return take_time(p, end, line[OP] == INSTANT, &number) < 0 ? REFUSED : append_long(d, s, (uint64_t)number);
    case DECIMAL:
        d->p = p;
        TRY(take_number(d, &n));
        if (n.end != end)
            return REFUSED;
        d->p = after;
        return append_rounded(d, s, &n, line);
    }
    return REFUSED;
}

static int take_from_number(json_t *j, sink_t *s, const int64_t *line)
{
    decoder_t *d = &j->base;
    number_t n;
    TRY(take_number(d, &n));
    switch (line[OP]) {
    case INTEGER:
        return append_integer(d, s, &n);
    case FLOAT:
    case DOUBLE:
        return append_real(j, s, &n);
    case DECIMAL:
        return append_rounded(d, s, &n, line);
    case STRING: /* as Python writes it: -0 as 0, and no number of thousands of digits */
        if (n.is_whole && (n.count >= FAR / 4 || (n.is_negative && n.digits == 0)))
            return REFUSED;
        return append_text(d, s, n.from, n.end - n.from);
    case INSTANT: /* seconds */
        if (!n.is_whole || n.count > 12)
            return REFUSED;
        return append_long(d, s, (n.is_negative ? 0 - n.digits : n.digits) * 1000000);
    }
    return REFUSED;
}

/* The next value to a row of a column. */
static int take_value(json_t *j, int64_t at)
{
    decoder_t *d = &j->base;
    sink_t *s = d->sinks + at;
    const int64_t *line = d->code + at * LINE_WIDTH;
    pass_space(d);
    if (d->p >= d->end)
        return REFUSED;
    switch (*d->p) {
    case 'n':
        TRY(take_word(d, "null", 4));
        return append_null(d, s);
    case '"':
        d->p++;
        return take_from_text(j, s, line);
    case '{':
        d->p++;
        return line[OP] == OBJECT ? take_object(j, at) : line[OP] == MAP ? take_items(j, s, s[1].end, s + 1) : REFUSED;
    case '[':
        d->p++;
        return line[OP] == ARRAY ? take_items(j, s, at + 1, NULL) : REFUSED;
    case 't':
    case 'f': {
        bytes_at from = d->p;
        int is_true = *from == 't';
        TRY(take_word(d, is_true ? "true" : "false", is_true ? 4 : 5));
        return line[OP] == BOOLEAN ? append_bit(d, s, is_true) : line[OP] == STRING ? append_text(d, s, from, d->p - from) : REFUSED;
    }
    }
    return take_from_number(j, s, line);
}

/* A value is an object; a blank one is null. */
static int take_document(decoder_t *d)
{
    d->free_rows = INT64_MAX;
    pass_space(d);
    if (d->p == d->end)
        return append_null(d, d->sinks);
    if (*d->p++ != '{')
        return REFUSED;
    TRY(take_object((json_t *)d, 0));
    pass_space(d);
    return GOOD;
}

/* ---- arguments of the caller ---------------------------------------------------------------------------------- */

static int check_lines(const int64_t *code, int64_t length, const int64_t *columns, int64_t count)
{
    if (length < count * LINE_WIDTH || code[OP] != OBJECT)
        return misused("no program of an object");
    for (int64_t i = 0; i < count; i++) {
        const int64_t *line = code + i * LINE_WIDTH, *column = columns + i * COLUMN_WIDTH;
        if (line[OP] < 0 || line[OP] >= OPS || line[SCALE] < 0 || line[SCALE] > 38)
            return misused("a line that does nothing known");
        int is_integer = column[KIND] == OCTETS || column[KIND] == SHORTS || column[KIND] == WORDS || column[KIND] == LONGS;
        if (line[OP] == INTEGER ? !is_integer : KIND_OF[line[OP]] != ANY && KIND_OF[line[OP]] != column[KIND])
            return misused("a line with a column that it cannot fill");
        if (line[NAME] < 8 * count * LINE_WIDTH || line[NAME] > line[NAME_END] || line[NAME_END] > 8 * length)
            return misused("a name that lies elsewhere");
        if (line[OP] == ARRAY || line[OP] == MAP) {
            int64_t first = columns[(i + 1) * COLUMN_WIDTH + END_OF_CHILDREN], end = column[END_OF_CHILDREN];
            if (line[OP] == ARRAY ? first != end
                                  : first == end || columns[(i + 1) * COLUMN_WIDTH] != TEXTS ||
                                        columns[first * COLUMN_WIDTH + END_OF_CHILDREN] != end)
                return misused("a list that is none of its line");
        }
    }
    return 0;
}

/* See decode_columns; code: a line for each column, then the bytes of their names. */
PyObject *decode_json(PyObject *module, PyObject *args)
{
    static const format_t json = {check_lines, take_document};
    json_t j = {{0}};
    PyObject *lists = PyTuple_Size(args) > 3 ? PyTuple_GetItem(args, 3) : NULL;
    Py_ssize_t count = lists != NULL && PyList_Check(lists) ? PyList_Size(lists) : 0;
    j.keys = calloc((size_t)count + 1, sizeof *j.keys);
    if (j.keys == NULL)
        return PyErr_NoMemory();
    PyObject *result = decode_columns(&j.base, &json, args);
    free(j.scratch);
    free(j.keys);
    return result;
}
