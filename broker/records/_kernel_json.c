/* Columns to JSON objects, called by spark_connector/formats/json_objects.py.
 *
 * A row is written in one pass over its fields. What is rare or long to write (nested values, decimals, most floats)
 * comes as text that was made before, column by column. */
#include "_kernel.h"
#include <stdlib.h>

enum { RAW, TEXT, INT8, INT16, INT32, INT64, BOOLEAN, DOUBLE, TIME, KINDS };
enum { NAME, OPEN, CLOSE, VALIDITY_BITS, VALUES, TEXT_EDGES, PATTERN, VIEWS };
enum { DIGITS = 29, LITERAL = 255, NULL_SIZE = 4, ESCAPED = 6 };
enum { FINE = 0, NO_MEMORY = -1, TOO_SHORT = -2, TOO_LARGE = -3, NOT_HERE = -4 };

/* Bytes of a value in its column, and the most that it takes as text (of RAW, TEXT and TIME without their content). */
static const int64_t WIDTH[KINDS] = {0, 0, 1, 2, 4, 8, 0, 8, 8}, MOST[KINDS] = {0, 0, 4, 6, 11, 20, 5, 24, 0};
static const char HEX[] = "0123456789ABCDEF";
static const int64_t US_OF_DAY = 86400000000;

struct field {
    int kind;
    Py_buffer views[VIEWS];
    int64_t first, first_value; /* of the validity, and of the values */
};

struct objects {
    struct field *fields;
    Py_ssize_t count;
    uint8_t *data;
    int64_t room, used, fixed;
    int ignore_nulls;
    int64_t day; /* of the date in `digits` */
    uint8_t digits[DIGITS];
};

static uint8_t *put_bytes(uint8_t *p, const Py_buffer *from)
{
    for (Py_ssize_t i = 0; i < from->len; i++) /* names are short, and memcpy is a call */
        p[i] = ((const uint8_t *)from->buf)[i];
    return p + from->len;
}

static uint8_t *put_unsigned(uint8_t *p, uint64_t number)
{
    uint8_t digits[20];
    int size = 0;
    do {
        digits[size++] = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number);
    while (size)
        *p++ = digits[--size];
    return p;
}

static void put_fixed(uint8_t *p, int64_t number, int size)
{
    for (int i = size - 1; i >= 0; i--, number /= 10)
        p[i] = (uint8_t)('0' + number % 10);
}

static uint8_t *put_integer(uint8_t *p, const struct field *f, int64_t at)
{
    const void *values = f->views[VALUES].buf;
    int64_t number;
    if (f->kind == INT64)
        number = ((const int64_t *)values)[at];
    else if (f->kind == INT32)
        number = ((const int32_t *)values)[at];
    else
        number = f->kind == INT16 ? ((const int16_t *)values)[at] : ((const int8_t *)values)[at];
    if (number >= 0)
        return put_unsigned(p, (uint64_t)number);
    *p++ = '-';
    return put_unsigned(p, 0 - (uint64_t)number);
}

/* The double as Java writes it, if it has up to 15 digits, at most 9 behind the point, and needs no exponent; else NULL.
 * A decimal of so few digits is the only one that is read as its double, and the division rounds as a reader does. */
static uint8_t *put_double(uint8_t *p, double value)
{
    static const double TENS[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
    uint64_t bits;
    memcpy(&bits, &value, 8);
    double size = value < 0 ? -value : value;
    if (!(size < 1e7) || (size < 1e-3 && size != 0))
        return NULL;
    for (int places = 0; places <= 9; places++) {
        uint64_t number = (uint64_t)(size * TENS[places] + 0.5);
        if (number >= 1000000000000000)
            return NULL;
        if ((double)number / TENS[places] != size)
            continue;
        if (bits >> 63)
            *p++ = '-';
        uint64_t ten = (uint64_t)TENS[places];
        p = put_unsigned(p, number / ten);
        *p++ = '.';
        if (places == 0)
            *p++ = '0';
        else
            put_fixed(p, (int64_t)(number % ten), places);
        return p + places;
    }
    return NULL;
}

static uint8_t *put_text(uint8_t *p, bytes_at from, int64_t length)
{
    for (bytes_at end = from + length; from < end; from++) {
        uint8_t byte = *from;
        if (byte >= 32 && byte != '"' && byte != '\\') {
            *p++ = byte;
            continue;
        }
        *p++ = '\\';
        const char *known = "\"\"\\\\\bb\tt\nn\ff\rr";
        while (*known && (uint8_t)*known != byte)
            known += 2;
        if (*known) {
            *p++ = (uint8_t)known[1];
            continue;
        }
        memcpy(p, "u00", 3);
        p[3] = (uint8_t)HEX[byte >> 4];
        p[4] = (uint8_t)HEX[byte & 15];
        p += 5;
    }
    return p;
}

/* Days since 1970 of the years 0 to 9999 as yyyy-MM-dd. */
static void put_date(uint8_t *p, int64_t day)
{
    int64_t since = day + 719468; /* since the first of March of the year 0; the cycle has 400 years */
    int64_t cycle = (since >= 0 ? since : since - 146096) / 146097, of_cycle = since - cycle * 146097;
    int64_t year = (of_cycle - of_cycle / 1460 + of_cycle / 36524 - of_cycle / 146096) / 365;
    int64_t of_year = of_cycle - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;
    put_fixed(p + 8, of_year - (153 * month + 2) / 5 + 1, 2);
    month = month < 10 ? month + 3 : month - 9;
    put_fixed(p + 5, month, 2);
    put_fixed(p, year + cycle * 400 + (month <= 2), 4);
}

static uint8_t *put_time(uint8_t *p, struct objects *o, const struct field *f, int64_t micros)
{
    int64_t day = micros / US_OF_DAY - (micros % US_OF_DAY < 0), of_day = micros - day * US_OF_DAY;
    if (day != o->day) {
        put_date(o->digits, day);
        o->day = day;
    }
    int64_t seconds = of_day / 1000000;
    put_fixed(o->digits + 11, seconds / 3600, 2);
    put_fixed(o->digits + 14, seconds / 60 % 60, 2);
    put_fixed(o->digits + 17, seconds % 60, 2);
    put_fixed(o->digits + 20, of_day % 1000000, 6);
    const uint8_t *pattern = f->views[PATTERN].buf;
    for (Py_ssize_t i = 0; i + 1 < f->views[PATTERN].len; i += 2)
        *p++ = pattern[i] == LITERAL ? pattern[i + 1] : o->digits[pattern[i]];
    return p;
}

/* Of RAW and TEXT: where the text lies. */
static int find_text(const struct field *f, int64_t row, bytes_at *from, int64_t *length)
{
    const int32_t *edges = f->views[TEXT_EDGES].buf;
    int64_t begin = edges[f->first_value + row], end = edges[f->first_value + row + 1];
    if (begin < 0 || begin > end || end > f->views[VALUES].len)
        return TOO_SHORT;
    *from = (bytes_at)f->views[VALUES].buf + begin;
    *length = end - begin;
    return FINE;
}

static int reserve(struct objects *o, int64_t row)
{
    int64_t more = o->fixed, length;
    bytes_at from;
    for (Py_ssize_t i = 0; i < o->count; i++)
        if (o->fields[i].kind <= TEXT) {
            if (find_text(&o->fields[i], row, &from, &length) < 0)
                return TOO_SHORT;
            more += o->fields[i].kind == TEXT ? ESCAPED * length : length;
        }
    if (o->room - o->used >= more)
        return FINE;
    int64_t room = 2 * o->room > o->used + more ? 2 * o->room : o->used + more;
    uint8_t *data = realloc(o->data, (size_t)room);
    if (data == NULL)
        return NO_MEMORY;
    o->data = data;
    o->room = room;
    return FINE;
}

/* There is room. NULL for a value that is not written here. */
static uint8_t *put_value(uint8_t *p, struct objects *o, const struct field *f, int64_t row)
{
    int64_t at = f->first_value + row, length = 0;
    bytes_at from = NULL;
    switch (f->kind) {
    case RAW:
        find_text(f, row, &from, &length);
        memcpy(p, from, (size_t)length);
        return p + length;
    case TEXT:
        find_text(f, row, &from, &length);
        return put_text(p, from, length);
    case BOOLEAN:
        if (get_bit(f->views[VALUES].buf, at)) {
            memcpy(p, "true", 4);
            return p + 4;
        }
        memcpy(p, "false", 5);
        return p + 5;
    case DOUBLE:
        return put_double(p, ((const double *)f->views[VALUES].buf)[at]);
    case TIME:
        return put_time(p, o, f, ((const int64_t *)f->views[VALUES].buf)[at]);
    default:
        return put_integer(p, f, at);
    }
}

static int put_row(struct objects *o, const Py_buffer *prefix, int64_t row)
{
    int done = reserve(o, row), is_first = 1;
    if (done < 0)
        return done;
    uint8_t *p = put_bytes(o->data + o->used, prefix);
    *p++ = '{';
    for (Py_ssize_t i = 0; i < o->count; i++) {
        const struct field *f = &o->fields[i];
        bytes_at validity = f->views[VALIDITY_BITS].buf;
        int is_null = validity != NULL && !get_bit(validity, f->first + row);
        if (is_null && o->ignore_nulls)
            continue;
        if (!is_first)
            *p++ = ',';
        is_first = 0;
        p = put_bytes(p, &f->views[NAME]);
        if (is_null) {
            memcpy(p, "null", NULL_SIZE);
            p += NULL_SIZE;
            continue;
        }
        p = put_value(put_bytes(p, &f->views[OPEN]), o, f, row);
        if (p == NULL)
            return NOT_HERE;
        p = put_bytes(p, &f->views[CLOSE]);
    }
    *p++ = '}';
    o->used = p - o->data;
    return o->used > INT32_MAX ? TOO_LARGE : FINE;
}

/* Takes the buffers of a field, and checks that they hold `rows` values. */
static int open_field(PyObject *one, int64_t rows, struct field *f)
{
    PyObject *objects[VIEWS];
    long long first, first_value;
    if (!PyArg_ParseTuple(one, "iOOOOOOOLL", &f->kind, &objects[NAME], &objects[OPEN], &objects[CLOSE],
                          &objects[VALIDITY_BITS], &objects[VALUES], &objects[TEXT_EDGES], &objects[PATTERN], &first,
                          &first_value))
        return -1;
    if (f->kind < 0 || f->kind >= KINDS || first < 0 || first_value < 0)
        return misused("no such field");
    int64_t end = first_value + rows;
    int64_t least[VIEWS] = {0};
    if (objects[VALIDITY_BITS] != Py_None)
        least[VALIDITY_BITS] = (first + rows + 7) / 8;
    least[VALUES] = f->kind == BOOLEAN ? (end + 7) / 8 : end * WIDTH[f->kind];
    least[TEXT_EDGES] = f->kind <= TEXT ? (end + 1) * 4 : 0;
    for (int i = 0; i < VIEWS; i++)
        if (take_buffer(objects[i], &f->views[i], PyBUF_SIMPLE, 0) < 0 || (rows > 0 && f->views[i].len < least[i] && misused("a buffer is too small") < 0))
            return -1;
    const uint8_t *pattern = f->views[PATTERN].buf;
    for (Py_ssize_t i = 0; i + 1 < f->views[PATTERN].len; i += 2)
        if (pattern[i] >= DIGITS && pattern[i] != LITERAL)
            return misused("no such digit");
    f->first = first;
    f->first_value = first_value;
    return 0;
}

/* json_objects(rows, prefix, ignore_nulls, fields) -> (edges, data) of Arrow's binary array, an object for each row
 * behind `prefix`; None if a double has too many digits for this. fields: a list of (kind, name, open, close, validity,
 * values, edges of texts, pattern, first bit of the validity, first value). RAW and TEXT are binary columns, the second
 * of UTF-8 to escape; TIME has microseconds of the local time in the years 0 to 9999, and a pattern of two bytes for each
 * byte: the place in `yyyy-MM-dd HH:mm:ss.SSSSSSSSS`, or LITERAL and the byte. Raises OverflowError beyond 2 GiB. */
PyObject *json_objects(PyObject *module, PyObject *args)
{
    PyObject *prefix_object, *fields, *result = NULL, *edges = NULL, *data = NULL;
    long long rows;
    int ignore_nulls, done = FINE;
    Py_buffer prefix = {0};
    struct objects o = {.day = INT64_MIN, .digits = "0000-00-00 00:00:00.000000000"};
    if (!PyArg_ParseTuple(args, "LOpO!", &rows, &prefix_object, &ignore_nulls, &PyList_Type, &fields))
        return NULL;
    if (rows < 0) {
        misused("no number of rows");
        return NULL;
    }
    if (take_buffer(prefix_object, &prefix, PyBUF_SIMPLE, 0) < 0)
        goto done;
    o.ignore_nulls = ignore_nulls;
    o.fixed = prefix.len + 2;
    Py_ssize_t count = PyList_Size(fields);
    o.fields = calloc((size_t)count + 1, sizeof *o.fields);
    edges = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4);
    if (o.fields == NULL || edges == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; o.count < count; o.count++) {
        struct field *f = &o.fields[o.count];
        if (open_field(PyList_GetItem(fields, o.count), rows, f) < 0) {
            o.count++;
            goto done;
        }
        o.fixed += 1 + NULL_SIZE + MOST[f->kind] + f->views[NAME].len + f->views[OPEN].len + f->views[CLOSE].len + f->views[PATTERN].len / 2;
    }
    int32_t *edge = (int32_t *)PyBytes_AsString(edges);
    edge[0] = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < rows && done == FINE; row++) {
        done = put_row(&o, &prefix, row);
        edge[row + 1] = (int32_t)o.used;
    }
    Py_END_ALLOW_THREADS
    if (done == FINE) {
        data = PyBytes_FromStringAndSize((const char *)o.data, o.used);
        result = data == NULL ? NULL : Py_BuildValue("(OO)", edges, data);
    }
    else if (done == NOT_HERE)
        result = Py_NewRef(Py_None);
    else if (done == NO_MEMORY)
        PyErr_NoMemory();
    else if (done == TOO_SHORT)
        misused("a column is too short");
    else
        PyErr_SetString(PyExc_OverflowError, "the values of a batch have more than 2 GiB");
done:
    for (Py_ssize_t i = 0; i < o.count; i++)
        drop_buffers(o.fields[i].views, VIEWS);
    drop_buffers(&prefix, 1);
    free(o.fields);
    free(o.data);
    Py_XDECREF(edges);
    Py_XDECREF(data);
    return result;
}
