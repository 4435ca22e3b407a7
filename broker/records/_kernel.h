/* What the files of the kernel share: numbers as batches write them, and the caller's buffers. See _kernel.c. */
#ifndef PYKAFKA_KERNEL_H
#define PYKAFKA_KERNEL_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* native.py loads no kernel of another version. Raise it there and here with every change of these sources. */
#define KERNEL_VERSION 10

typedef const uint8_t *bytes_at;

/* Of a batch, see batch.py. CHECKED is where the bytes begin that the checksum covers. */
enum { HEADER_SIZE = 61, LENGTH_END = 12, CRC_POSITION = 17, CHECKED = 21 };

/* ---- numbers ---------------------------------------------------------------------------------------------- */

/* The zigzag varint at p, NULL when it does not end before `end` or within ten bytes. */
static inline bytes_at read_varint(bytes_at p, bytes_at end, int64_t *value)
{
    if (p >= end)
        return NULL;
    uint64_t number = *p++;
    if (number & 0x80) {
        number &= 0x7F;
        for (int shift = 7;; shift += 7) {
            if (p >= end || shift > 63)
                return NULL;
            uint64_t byte = *p++;
            number |= (byte & 0x7F) << shift;
            if (!(byte & 0x80))
                break;
        }
    }
    *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
    return p;
}

static inline uint64_t zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static inline int64_t varint_size(int64_t value)
{
    uint64_t number = zigzag(value);
    int64_t size = 1;
    while (number >= 0x80)
        number >>= 7, size++;
    return size;
}

static inline uint8_t *write_varint(uint8_t *p, int64_t value)
{
    uint64_t number = zigzag(value);
    while (number >= 0x80) {
        *p++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *p++ = (uint8_t)number;
    return p;
}

static inline uint64_t read_big(bytes_at p, int size)
{
    uint64_t number = 0;
    for (int i = 0; i < size; i++)
        number = number << 8 | p[i];
    return number;
}

static inline uint8_t *write_big(uint8_t *p, uint64_t number, int size)
{
    for (int i = size - 1; i >= 0; i--, number >>= 8)
        p[i] = (uint8_t)number;
    return p + size;
}

static inline int get_bit(bytes_at bits, int64_t index)
{
    return bits[index >> 3] >> (index & 7) & 1;
}

/* As Python reads it: no surrogates, no overlong forms. */
static inline int is_utf8(bytes_at p, int64_t size)
{
    bytes_at end = p + size;
    while (p < end) {
        uint64_t eight;
        while (end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080u)))
            p += 8;
        while (p < end && *p < 0x80)
            p++;
        if (p == end)
            break;
        int more = *p >= 0xF0 ? 3 : *p >= 0xE0 ? 2 : 1;
        uint32_t least = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80, point = *p & (0x3F >> more);
        if (*p < 0xC2 || *p > 0xF4 || end - p <= more)
            return 0;
        for (int i = 1; i <= more; i++) {
            if ((p[i] & 0xC0) != 0x80)
                return 0;
            point = point << 6 | (p[i] & 0x3F);
        }
        if (point < least || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
            return 0;
        p += more + 1;
    }
    return 1;
}

#define BLOCK 32

/* Copies in blocks where both sides have room for a whole last one: fields are short, and memmove is a call. `to` may lie
 * in the same memory as `from`, at least a block before it. */
static inline void copy(uint8_t *to, const uint8_t *to_end, bytes_at from, bytes_at from_end, int64_t length)
{
    if (length <= 8 * BLOCK && to_end - to >= length + BLOCK && from_end - from >= length + BLOCK) {
        for (int64_t i = 0; i < length; i += BLOCK)
            memcpy(to + i, from + i, BLOCK);
    }
    else if (length > 0)
        memmove(to, from, (size_t)length);
}

/* ---- buffers of the caller -------------------------------------------------------------------------------- */

static inline int misused(const char *what)
{
    PyErr_SetString(PyExc_SystemError, what);
    return -1;
}

/* None leaves the view empty. */
static inline int take_buffer(PyObject *object, Py_buffer *view, int flags, int64_t at_least)
{
    view->obj = NULL;
    view->buf = NULL;
    view->len = 0;
    if (object == NULL)
        return -1;
    if (object == Py_None)
        return 0;
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    return view->len < at_least ? misused("a buffer is too small") : 0;
}

static inline void drop_buffers(Py_buffer *views, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (views[i].obj != NULL)
            PyBuffer_Release(&views[i]);
}

/* ---- binary columns of the caller --------------------------------------------------------------------------- */

enum { EDGES, VALIDITY, DATA, COLUMN_VIEWS };

typedef struct {
    Py_buffer views[COLUMN_VIEWS];
    const int32_t *edges; /* moved to the first row; NULL: there is no such column */
    bytes_at validity, data, data_end;
    int64_t first; /* bit of the first row in `validity` */
} column_t;

int open_column(PyObject *object, int64_t rows, column_t *column);
void close_column(column_t *column);

/* Bytes of an element, -1 for null. */
static inline int64_t size_of(const column_t *column, int64_t row)
{
    if (column->edges == NULL || (column->validity != NULL && !get_bit(column->validity, column->first + row)))
        return -1;
    return column->edges[row + 1] - column->edges[row];
}

/* Where the checksum is an instruction, the kernel computes it; elsewhere crc32c.py does. */
#if defined(__x86_64__) && defined(__GNUC__)
#define CRC_BY_CPU 1
#define LANES 3
/* The CRC-32C of each of up to three stretches, computed at once. */
void crc32c_lanes(const bytes_at *at, const int64_t *size, int count, uint32_t *out);
#endif

PyObject *scan(PyObject *module, PyObject *args);
PyObject *check_records(PyObject *module, PyObject *args);
PyObject *first_bad_crc(PyObject *module, PyObject *args);
PyObject *count_headers(PyObject *module, PyObject *args);
PyObject *decode(PyObject *module, PyObject *args);
PyObject *decode_plain(PyObject *module, PyObject *args);
PyObject *decode_avro(PyObject *module, PyObject *args);
PyObject *decode_json(PyObject *module, PyObject *args);
PyObject *encode(PyObject *module, PyObject *args);
PyObject *json_objects(PyObject *module, PyObject *args);
PyObject *partitions(PyObject *module, PyObject *args);
PyObject *plain_rows(PyObject *module, PyObject *args);
PyObject *protobuf_decode(PyObject *module, PyObject *args);
PyObject *protobuf_encode(PyObject *module, PyObject *args);

#endif
