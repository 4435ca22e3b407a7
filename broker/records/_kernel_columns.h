/* Arrow columns in the making: what the decoders of values share (Avro's in _kernel_avro.c, JSON's in
 * _kernel_json_decode.c). Called by spark_connector/formats/kernel_columns.py, which makes the buffers.
 *
 * A value that is not plainly good is refused, not explained: its row is null, its number is left in `refused`, and the
 * caller decodes it in Python, which finds the reason, or that it is a value after all. Whatever a refused value left
 * in the columns is taken back. */
#ifndef PYKAFKA_KERNEL_COLUMNS_H
#define PYKAFKA_KERNEL_COLUMNS_H

#include "_kernel.h"

/* ---- columns: Arrow arrays in the making ---------------------------------------------------------------------- */

/* The numbers are those of `ColumnKind` in kernel_columns.py. */
enum { NOTHING, BITS, WORDS, LONGS, DECIMALS, TEXTS, STRUCT, LIST, OCTETS, SHORTS, KINDS, ANY };
enum { KIND, END_OF_CHILDREN, COLUMN_WIDTH };
enum { ROW, REFUSED_ROWS, STATE_HEAD };
enum { ROWS, USED, HAS_NULLS, STATE_WIDTH };
enum { VALID, MAIN, MORE, BUFFERS };
static const int WIDTHS[KINDS] = {0, 0, 4, 8, 16, 4, 0, 4, 1, 2}; /* bytes of a row in the buffer MAIN */

/* Its children follow it: the first is the next column, and behind the last of a child's own is that child's sibling.
 * TEXTS have edges in `main` and bytes in `more`, a LIST has edges in `main`; a map is a LIST of two children. */
typedef struct {
    int64_t kind, end;
    uint8_t *valid, *main, *more;
    int64_t rows, capacity, used, room;
    int has_nulls; /* until the first null, `valid` is not written */
} sink_t;

typedef struct {
    const int64_t *code;
    int64_t length; /* of the code */
    sink_t *sinks;
    bytes_at p, end, data_end;
    int64_t full; /* the buffer that is too small: 2 * column, + 1 if it is `more` */
    int64_t free_rows; /* how many more the value may have that no byte stands for */
    int depth;
} decoder_t;

enum { GOOD, REFUSED, FULL, TOO_LARGE };
enum { MOST_FREE_ROWS = 1 << 24 }; /* and one for each byte of the value */
enum { DEEPEST = 1000 }; /* calls of `run` within each other, of some 200 bytes of stack */

#define TRY(call)                                                                                                     \
    do {                                                                                                              \
        int outcome_ = (call);                                                                                        \
        if (outcome_ != GOOD)                                                                                         \
            return outcome_;                                                                                          \
    } while (0)

static inline void set_bit(uint8_t *bits, int64_t index, int bit)
{
    uint8_t mask = (uint8_t)(1 << (index & 7));
    bits[index >> 3] = (uint8_t)((bits[index >> 3] & ~mask) | (bit ? mask : 0));
}

static inline int needs_row(decoder_t *d, const sink_t *s)
{
    if (s->rows < s->capacity)
        return GOOD;
    d->full = 2 * (s - d->sinks);
    return FULL;
}

static inline void end_row(sink_t *s)
{
    if (s->has_nulls)
        set_bit(s->valid, s->rows, 1);
    s->rows++;
}

static inline int needs_no_byte(decoder_t *d)
{
    return --d->free_rows < 0 ? TOO_LARGE : GOOD;
}

static inline int append_null(decoder_t *d, sink_t *s)
{
    TRY(needs_row(d, s));
    TRY(needs_no_byte(d));
    if (s->kind == NOTHING) {
        s->rows++;
        return GOOD;
    }
    if (!s->has_nulls) {
        memset(s->valid, 0xFF, (size_t)(s->rows + 7) / 8);
        s->has_nulls = 1;
    }
    set_bit(s->valid, s->rows, 0);
    if (s->kind == BITS)
        set_bit(s->main, s->rows, 0);
    else if (s->kind == TEXTS || s->kind == LIST)
        ((int32_t *)s->main)[s->rows + 1] = ((int32_t *)s->main)[s->rows];
    else if (s->kind == STRUCT)
        for (sink_t *child = s + 1; child < d->sinks + s->end; child = d->sinks + child->end)
            TRY(append_null(d, child));
    else
        memset(s->main + WIDTHS[s->kind] * s->rows, 0, (size_t)WIDTHS[s->kind]);
    s->rows++;
    return GOOD;
}

/* Back to the first `rows` rows. */
static inline void truncate_to(decoder_t *d, sink_t *s, int64_t rows)
{
    if (rows > s->rows)
        return;
    s->rows = rows;
    if (s->kind == TEXTS)
        s->used = ((int32_t *)s->main)[rows];
    if (s->kind == LIST)
        rows = ((int32_t *)s->main)[rows];
    for (sink_t *child = s + 1; child < d->sinks + s->end; child = d->sinks + child->end)
        truncate_to(d, child, rows);
}

static inline int append_text(decoder_t *d, sink_t *s, bytes_at from, int64_t size)
{
    TRY(needs_row(d, s));
    if (size > s->room - s->used) {
        d->full = 2 * (s - d->sinks) + 1;
        return FULL;
    }
    copy(s->more + s->used, s->more + s->room, from, d->data_end, size);
    s->used += size;
    ((int32_t *)s->main)[s->rows + 1] = (int32_t)s->used;
    end_row(s);
    return GOOD;
}

/* A number of as many bytes as the column's rows have. */
static inline int append_number(decoder_t *d, sink_t *s, const void *number, int width)
{
    TRY(needs_row(d, s));
    memcpy(s->main + width * s->rows, number, (size_t)width);
    end_row(s);
    return GOOD;
}

static inline int append_word(decoder_t *d, sink_t *s, uint32_t word)
{
    return append_number(d, s, &word, 4);
}

static inline int append_long(decoder_t *d, sink_t *s, uint64_t number)
{
    return append_number(d, s, &number, 8);
}

static inline int append_bit(decoder_t *d, sink_t *s, int bit)
{
    TRY(needs_row(d, s));
    set_bit(s->main, s->rows, bit);
    end_row(s);
    return GOOD;
}

static inline int append_float(decoder_t *d, sink_t *s, float number)
{
    uint32_t word;
    memcpy(&word, &number, 4);
    return append_word(d, s, word);
}

static inline int append_double(decoder_t *d, sink_t *s, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, 8);
    return append_long(d, s, bits);
}

/* How the values of a format are decoded. */
typedef struct {
    int (*check)(const int64_t *code, int64_t length, const int64_t *columns, int64_t count); /* -1: misused */
    int (*value)(decoder_t *d); /* from d->p to d->end, to a row of the first column */
} format_t;

int has_twice(const sink_t *keys, int64_t first);
int append_decimal(decoder_t *d, sink_t *s, uint64_t high, uint64_t low, const int64_t *limit);
PyObject *decode_columns(decoder_t *d, const format_t *format, PyObject *args);

#endif
