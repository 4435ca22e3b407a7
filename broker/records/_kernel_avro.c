/* Avro's binary encoding to Arrow buffers: values of one writer's schema, by a program that says what of them goes where.
 * Called by spark_connector/formats/avro_batches.py, which makes the program and the columns. See _kernel.c.
 *
 * A value that is not plainly good is refused, not explained: its row is null, its number is left in `refused`, and the
 * caller decodes it in Python, which finds the reason, or that it is a value after all. So the kernel may refuse what it
 * has no code for (maps with a key twice, numbers of more than 64 bits, values nested very deep), and what it accepts
 * is what Python reads. Whatever a refused value left in the columns is taken back.
 *
 * What is passed over takes at least a byte, or has two parts that do (`Passing` of avro_schema.py). But a byte of a
 * value can be a null of a struct, which takes a row in every column within it, or an item with any number of fields
 * that take no bytes. So there is a limit for the rows of a value that no byte stands for: one beyond it is refused as
 * TOO_LARGE, and Python must not try it. */
#include "_kernel.h"

#include <stdlib.h>

/* ---- columns: Arrow arrays in the making ---------------------------------------------------------------------- */

enum { NOTHING, BITS, WORDS, LONGS, DECIMALS, TEXTS, STRUCT, LIST, KINDS, ANY };
enum { KIND, END_OF_CHILDREN, COLUMN_WIDTH };
enum { ROW, REFUSED_ROWS, STATE_HEAD };
enum { ROWS, USED, HAS_NULLS, STATE_WIDTH };
enum { VALID, MAIN, MORE, BUFFERS };
static const int WIDTHS[KINDS] = {0, 0, 4, 8, 16, 4, 0, 4}; /* bytes of a row in the buffer MAIN */

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

static int append_null(decoder_t *d, sink_t *s)
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
static void truncate_to(decoder_t *d, sink_t *s, int64_t rows)
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

static inline int append_word(decoder_t *d, sink_t *s, uint32_t word)
{
    TRY(needs_row(d, s));
    memcpy(s->main + 4 * s->rows, &word, 4);
    end_row(s);
    return GOOD;
}

static inline int append_long(decoder_t *d, sink_t *s, uint64_t number)
{
    TRY(needs_row(d, s));
    memcpy(s->main + 8 * s->rows, &number, 8);
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

/* ---- what a value is made of ---------------------------------------------------------------------------------- */

static inline int take_long(decoder_t *d, int64_t *value)
{
    bytes_at p = d->p, end = d->end;
    if (p >= end)
        return REFUSED;
    uint64_t number = *p++;
    if (number & 0x80) {
        number &= 0x7F;
        for (int shift = 7;; shift += 7) {
            if (p >= end || shift > 63 || (shift == 63 && *p > 1))
                return REFUSED;
            uint64_t byte = *p++;
            number |= (byte & 0x7F) << shift;
            if (!(byte & 0x80))
                break;
        }
    }
    d->p = p;
    *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
    return GOOD;
}

static inline int take(decoder_t *d, int64_t size, bytes_at *from)
{
    if (size < 0 || size > d->end - d->p)
        return REFUSED;
    *from = d->p;
    d->p += size;
    return GOOD;
}

static inline int take_sized(decoder_t *d, bytes_at *from, int64_t *size)
{
    TRY(take_long(d, size));
    return take(d, *size, from);
}

/* Of the next block of an array or map; 0 at its end, and never more than `most`. */
static inline int take_count(decoder_t *d, int64_t *count, int64_t most)
{
    int64_t size;
    TRY(take_long(d, count));
    if (*count < 0) {
        if (*count == INT64_MIN)
            return REFUSED;
        *count = -*count;
        TRY(take_long(d, &size));
    }
    return *count > most ? REFUSED : GOOD;
}

static inline uint64_t read_little(bytes_at p, int size)
{
    uint64_t number = 0;
    for (int i = size - 1; i >= 0; i--)
        number = number << 8 | p[i];
    return number;
}

/* Two's complement of 1 to 16 bytes, the highest first; smaller than the limit, without its sign. */
static inline int append_decimal(decoder_t *d, sink_t *s, bytes_at from, int64_t size, const int64_t *limit)
{
    if (size < 1 || size > 16)
        return REFUSED;
    uint64_t high = from[0] & 0x80 ? UINT64_MAX : 0, low = high;
    for (int64_t i = 0; i < size; i++) {
        high = high << 8 | low >> 56;
        low = low << 8 | from[i];
    }
    uint64_t above = high, below = low, parts[2] = {low, high};
    if (high >> 63) {
        below = ~low + 1;
        above = ~high + (below == 0);
    }
    if (above > (uint64_t)limit[0] || (above == (uint64_t)limit[0] && below >= (uint64_t)limit[1]))
        return REFUSED;
    TRY(needs_row(d, s));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    parts[0] = high, parts[1] = low;
#endif
    memcpy(s->main + 16 * s->rows, parts, 16);
    end_row(s);
    return GOOD;
}

enum { FEW = 8, PROBES = 32 };

/* Whether two of the last keys are the same; or may be, if too many share a place of the table. */
static int has_twice(const sink_t *keys, int64_t first)
{
    const int32_t *edges = (const int32_t *)keys->main;
    int64_t count = keys->rows - first, places = 4;
#define SAME(a, b)                                                                                                    \
    (edges[(a) + 1] - edges[a] == edges[(b) + 1] - edges[b] &&                                                        \
     memcmp(keys->more + edges[a], keys->more + edges[b], (size_t)(edges[(a) + 1] - edges[a])) == 0)
    if (count <= FEW) {
        for (int64_t i = first + 1; i < keys->rows; i++)
            for (int64_t j = first; j < i; j++)
                if (SAME(i, j))
                    return 1;
        return 0;
    }
    while (places < 2 * count)
        places *= 2;
    int32_t *table = calloc((size_t)places, sizeof *table); /* a key's row + 1 */
    int found = table == NULL;
    for (int64_t i = first; i < keys->rows && !found; i++) {
        uint64_t hash = 0xCBF29CE484222325u;
        for (int32_t at = edges[i]; at < edges[i + 1]; at++)
            hash = (hash ^ keys->more[at]) * 0x100000001B3u;
        int64_t place = (int64_t)((hash ^ hash >> 32) & (uint64_t)(places - 1)), probes = 0;
        for (; table[place] != 0 && !found; place = (place + 1) & (places - 1))
            found = ++probes > PROBES || SAME(table[place] - 1, i);
        table[place] = (int32_t)i + 1;
    }
    free(table);
    return found;
#undef SAME
}

/* ---- the program ---------------------------------------------------------------------------------------------- */

/* A node: what to do, its column or -1, an argument, the number of operands, the operands, which are nodes but for
 * those of ENUM and DECIMAL. The numbers are those of `_Op` in avro_batches.py. */
enum {
    REFUSE,           /* Nothing is read. */
    NULL_VALUE,       /* Of no bytes. */
    BOOLEAN,          /* To BITS. */
    INT,              /* To WORDS, within 32 bits. */
    LONG,             /* To LONGS. */
    MILLIS,           /* To LONGS, as microseconds. */
    LONG_AS_FLOAT,    /* To WORDS. */
    LONG_AS_DOUBLE,   /* To LONGS. */
    LONG_BY_FLOAT,    /* To LONGS, a double, rounded to a float. */
    FLOAT,            /* To WORDS. */
    FLOAT_AS_DOUBLE,  /* To LONGS. */
    DOUBLE,           /* To LONGS. */
    STRING,           /* To TEXTS, UTF-8. */
    BYTES,            /* To TEXTS. */
    FIXED,            /* To TEXTS; argument: bytes. */
    DECIMAL,          /* To DECIMALS; argument: bytes, or -1 if the value has its size; operands: see append_decimal. */
    ENUM,             /* To WORDS; operands: the number for each symbol, or -1. */
    RECORD,           /* To STRUCT; operands: its fields. */
    MEMBER,           /* To STRUCT; argument: the child that the operand fills, or -1; the others become null. */
    UNION,            /* Operands: its branches. */
    ARRAY,            /* To LIST; operand: its items. */
    MAP,              /* To LIST; operand: its values; the keys go to its first child. */
    PASS_LONG,        /* From here on nothing is kept. */
    PASS_BYTES,
    PASS_FIXED,       /* Argument: bytes. */
    PASS_RECORD,      /* Operands: its fields. */
    PASS_ARRAY,       /* Operand: its items; none if these take no bytes. */
    PASS_MAP,         /* Operand: its values. */
    OPS
};
enum { OP, COLUMN, ARGUMENT, OPERANDS, NODE_HEAD };
enum { NO_NODES = -1, ANY_NUMBER = -2 };

/* The kind of an op's column, and how many of its operands are nodes. */
static const struct {
    int kind, nodes;
} SHAPES[OPS] = {
    [REFUSE] = {-1, 0}, [NULL_VALUE] = {ANY, 0}, [BOOLEAN] = {BITS, 0}, [INT] = {WORDS, 0}, [LONG] = {LONGS, 0},
    [MILLIS] = {LONGS, 0}, [LONG_AS_FLOAT] = {WORDS, 0}, [LONG_AS_DOUBLE] = {LONGS, 0}, [LONG_BY_FLOAT] = {LONGS, 0},
    [FLOAT] = {WORDS, 0}, [FLOAT_AS_DOUBLE] = {LONGS, 0}, [DOUBLE] = {LONGS, 0}, [STRING] = {TEXTS, 0},
    [BYTES] = {TEXTS, 0}, [FIXED] = {TEXTS, 0}, [DECIMAL] = {DECIMALS, NO_NODES}, [ENUM] = {WORDS, NO_NODES},
    [RECORD] = {STRUCT, ANY_NUMBER}, [MEMBER] = {STRUCT, 1}, [UNION] = {-1, ANY_NUMBER}, [ARRAY] = {LIST, 1},
    [MAP] = {LIST, 1}, [PASS_LONG] = {-1, 0}, [PASS_BYTES] = {-1, 0}, [PASS_FIXED] = {-1, 0},
    [PASS_RECORD] = {-1, ANY_NUMBER}, [PASS_ARRAY] = {-1, ANY_NUMBER}, [PASS_MAP] = {-1, 1}};

static const int64_t MOST_MILLIS = INT64_MAX / 1000;

static int run(decoder_t *d, int64_t at);

static int run_items(decoder_t *d, int64_t item, sink_t *keys)
{
    int64_t count, size;
    bytes_at from;
    for (;;) {
        TRY(take_count(d, &count, d->end - d->p)); /* each item takes at least a byte */
        if (count == 0)
            return GOOD;
        for (; count > 0; count--) {
            if (keys != NULL) {
                TRY(take_sized(d, &from, &size));
                if (!is_utf8(from, size))
                    return REFUSED;
                TRY(append_text(d, keys, from, size));
            }
            TRY(run(d, item));
        }
    }
}

static int pass_items(decoder_t *d, int64_t item, int has_keys)
{
    int64_t count, size;
    bytes_at from;
    for (;;) {
        TRY(take_count(d, &count, d->end - d->p));
        if (count == 0)
            return GOOD;
        for (; count > 0; count--) {
            if (has_keys)
                TRY(take_sized(d, &from, &size));
            TRY(run(d, item));
        }
    }
}

/* Items that take no bytes: as many as a list can have in Java. */
static int pass_empty_items(decoder_t *d)
{
    int64_t count, left = INT32_MAX;
    do {
        TRY(take_count(d, &count, left));
        left -= count;
    } while (count > 0);
    return GOOD;
}

static int run_list(decoder_t *d, sink_t *s, int64_t item, sink_t *keys)
{
    TRY(needs_row(d, s));
    int64_t first = s[1].rows;
    TRY(run_items(d, item, keys));
    if (keys != NULL && has_twice(keys, first))
        return REFUSED;
    ((int32_t *)s->main)[s->rows + 1] = (int32_t)s[1].rows;
    end_row(s);
    return GOOD;
}

static int run_member(decoder_t *d, sink_t *s, int64_t member, int64_t node)
{
    TRY(needs_row(d, s));
    TRY(run(d, node));
    for (sink_t *child = s + 1; child < d->sinks + s->end; child = d->sinks + child->end)
        if (child - d->sinks != member)
            TRY(append_null(d, child));
    end_row(s);
    return GOOD;
}

static int run_nodes(decoder_t *d, const int64_t *nodes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        TRY(run(d, nodes[i]));
    return GOOD;
}

static int run_node(decoder_t *d, const int64_t *node)
{
    sink_t *s = node[COLUMN] < 0 ? NULL : d->sinks + node[COLUMN];
    const int64_t *operands = node + NODE_HEAD;
    int64_t number, size;
    bytes_at from;
    uint32_t word;
    uint64_t bits;
    float single;
    switch (node[OP]) {
    case NULL_VALUE:
        return append_null(d, s);
    case BOOLEAN:
        TRY(take(d, 1, &from));
        TRY(needs_row(d, s));
        set_bit(s->main, s->rows, *from != 0);
        end_row(s);
        return GOOD;
    case INT:
        TRY(take_long(d, &number));
        return number < INT32_MIN || number > INT32_MAX ? REFUSED : append_word(d, s, (uint32_t)number);
    case LONG:
        TRY(take_long(d, &number));
        return append_long(d, s, (uint64_t)number);
    case MILLIS:
        TRY(take_long(d, &number));
        return number < -MOST_MILLIS || number > MOST_MILLIS ? REFUSED : append_long(d, s, (uint64_t)(number * 1000));
    case LONG_AS_FLOAT:
        TRY(take_long(d, &number));
        return append_float(d, s, (float)number);
    case LONG_AS_DOUBLE:
        TRY(take_long(d, &number));
        return append_double(d, s, (double)number);
    case LONG_BY_FLOAT:
        TRY(take_long(d, &number));
        return append_double(d, s, (double)(float)number);
    case FLOAT:
        TRY(take(d, 4, &from));
        return append_word(d, s, (uint32_t)read_little(from, 4));
    case FLOAT_AS_DOUBLE:
        TRY(take(d, 4, &from));
        word = (uint32_t)read_little(from, 4);
        memcpy(&single, &word, 4);
        return append_double(d, s, (double)single);
    case DOUBLE:
        TRY(take(d, 8, &from));
        bits = read_little(from, 8);
        return append_long(d, s, bits);
    case STRING:
        TRY(take_sized(d, &from, &size));
        return is_utf8(from, size) ? append_text(d, s, from, size) : REFUSED;
    case BYTES:
        TRY(take_sized(d, &from, &size));
        return append_text(d, s, from, size);
    case FIXED:
        if (node[ARGUMENT] == 0)
            TRY(needs_no_byte(d));
        TRY(take(d, node[ARGUMENT], &from));
        return append_text(d, s, from, node[ARGUMENT]);
    case DECIMAL:
        size = node[ARGUMENT];
        if (size < 0)
            TRY(take_sized(d, &from, &size));
        else
            TRY(take(d, size, &from));
        return append_decimal(d, s, from, size, operands);
    case ENUM:
        TRY(take_long(d, &number));
        if (number < 0 || number >= node[OPERANDS] || operands[number] < 0)
            return REFUSED;
        return append_word(d, s, (uint32_t)operands[number]);
    case RECORD:
        TRY(needs_no_byte(d));
        TRY(needs_row(d, s));
        TRY(run_nodes(d, operands, node[OPERANDS]));
        end_row(s);
        return GOOD;
    case MEMBER:
        return run_member(d, s, node[ARGUMENT], operands[0]);
    case UNION:
        TRY(take_long(d, &number));
        return number < 0 || number >= node[OPERANDS] ? REFUSED : run(d, operands[number]);
    case ARRAY:
        return run_list(d, s, operands[0], NULL);
    case MAP:
        return run_list(d, s, operands[0], s + 1);
    case PASS_LONG:
        return take_long(d, &number);
    case PASS_BYTES:
        return take_sized(d, &from, &size);
    case PASS_FIXED:
        return take(d, node[ARGUMENT], &from);
    case PASS_RECORD:
        return run_nodes(d, operands, node[OPERANDS]);
    case PASS_ARRAY:
    case PASS_MAP:
        return node[OPERANDS] == 0 ? pass_empty_items(d) : pass_items(d, operands[0], node[OP] == PASS_MAP);
    }
    return REFUSED;
}

static int run(decoder_t *d, int64_t at)
{
    if (++d->depth > DEEPEST)
        return REFUSED;
    TRY(run_node(d, d->code + at));
    d->depth--;
    return GOOD;
}

/* All values from state[ROW] on. 0 if a buffer became too small before the end. */
static int run_rows(decoder_t *d, const column_t *values, int64_t rows, int64_t begin, int64_t *state, int32_t *refused)
{
    for (; state[ROW] < rows; state[ROW]++) {
        int64_t row = state[ROW], size = size_of(values, row);
        int outcome = REFUSED, refusal;
        d->free_rows = INT64_MAX;
        if (size < 0)
            outcome = append_null(d, d->sinks);
        else if (size >= begin) {
            d->end = values->data + values->edges[row + 1];
            d->p = d->end - size + begin;
            d->depth = 0;
            d->free_rows = MOST_FREE_ROWS + size;
            outcome = run(d, 0);
            if (outcome == GOOD && d->p != d->end)
                outcome = REFUSED;
        }
        refusal = outcome;
        if (outcome == REFUSED || outcome == TOO_LARGE) {
            truncate_to(d, d->sinks, row);
            d->free_rows = INT64_MAX;
            outcome = append_null(d, d->sinks);
            if (outcome == GOOD)
                refused[state[REFUSED_ROWS]++] = (int32_t)(refusal == TOO_LARGE ? ~row : row);
        }
        if (outcome == FULL) {
            truncate_to(d, d->sinks, row);
            return 0;
        }
    }
    return 1;
}

/* ---- arguments of the caller ---------------------------------------------------------------------------------- */

/* The children of each column lie side by side between it and its end. */
static int check_columns(const int64_t *columns, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t kind = columns[i * COLUMN_WIDTH + KIND], end = columns[i * COLUMN_WIDTH + END_OF_CHILDREN];
        if (kind < 0 || kind >= KINDS || end <= i || end > count)
            return misused("a column of no kind or without an end");
        if (kind == LIST ? end == i + 1 : kind != STRUCT && end != i + 1)
            return misused("a column with children that it cannot have");
        for (int64_t child = i + 1; child < end;) {
            int64_t next = columns[child * COLUMN_WIDTH + END_OF_CHILDREN];
            if (next <= child || next > end)
                return misused("columns that are no tree");
            child = next;
        }
    }
    return count > 0 ? 0 : misused("no column");
}

/* Whether all nodes are whole, have columns of their kind, and lead to nodes. */
static int check_code(const int64_t *code, int64_t length, const int64_t *columns, int64_t count)
{
    char *is_node = PyMem_Calloc((size_t)length + 1, 1);
    const char *wrong = length < NODE_HEAD ? "no program" : NULL;
    if (is_node == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t at = 0; at < length && wrong == NULL; at += NODE_HEAD + code[at + OPERANDS]) {
        const int64_t *node = code + at;
        is_node[at] = 1;
        if (length - at < NODE_HEAD || node[OPERANDS] < 0 || node[OPERANDS] > length - at - NODE_HEAD) {
            wrong = "a node without an end";
            break;
        }
        if (node[OP] < 0 || node[OP] >= OPS) {
            wrong = "a node that does nothing known";
            break;
        }
        int kind = SHAPES[node[OP]].kind, nodes = SHAPES[node[OP]].nodes;
        int64_t column = node[COLUMN], children = -1;
        if (kind < 0 ? column != -1 : column < 0 || column >= count || (kind != ANY && columns[column * COLUMN_WIDTH] != kind))
            wrong = "a node with a column that it cannot fill";
        else if ((nodes >= 0 && node[OPERANDS] != nodes) || (node[OP] == DECIMAL && node[OPERANDS] != 2))
            wrong = "a node with too few operands or too many";
        else if ((node[OP] == FIXED || node[OP] == PASS_FIXED) && node[ARGUMENT] < 0)
            wrong = "a size below 0";
        else if (node[OP] == MAP || node[OP] == ARRAY) {
            children = 0;
            for (int64_t child = column + 1; child < columns[column * COLUMN_WIDTH + END_OF_CHILDREN]; children++)
                child = columns[child * COLUMN_WIDTH + END_OF_CHILDREN];
            if (children != (node[OP] == MAP ? 2 : 1) ||
                (node[OP] == MAP && columns[(column + 1) * COLUMN_WIDTH] != TEXTS))
                wrong = "a list that is none of its node";
        }
    }
    for (int64_t at = 0; at < length && wrong == NULL; at += NODE_HEAD + code[at + OPERANDS])
        for (int64_t i = 0; i < code[at + OPERANDS] && SHAPES[code[at]].nodes != NO_NODES; i++) {
            int64_t to = code[at + NODE_HEAD + i];
            if (to < 0 || to >= length || !is_node[to])
                wrong = "a node that leads to none";
        }
    PyMem_Free(is_node);
    return wrong == NULL ? 0 : misused(wrong);
}

/* Takes a column's buffers and how far it is filled. */
static int open_sink(sink_t *s, const int64_t *column, const int64_t *state, PyObject *list, Py_buffer *views)
{
    memset(s, 0, sizeof *s);
    s->kind = column[KIND];
    s->end = column[END_OF_CHILDREN];
    s->rows = state[ROWS];
    s->used = state[USED];
    s->has_nulls = state[HAS_NULLS] != 0;
    s->capacity = INT64_MAX;
    for (int i = 0; i < BUFFERS; i++)
        if (take_buffer(PyList_GetItem(list, i), &views[i], PyBUF_WRITABLE, 0) < 0)
            return -1;
    if (s->kind == NOTHING)
        return 0;
    s->valid = views[VALID].buf;
    s->main = views[MAIN].buf;
    s->more = views[MORE].buf;
    int64_t least = views[VALID].len * 8, width = WIDTHS[s->kind];
    if (s->kind == BITS && views[MAIN].len * 8 < least)
        least = views[MAIN].len * 8;
    if (width > 0) {
        int64_t room = views[MAIN].len / width - (s->kind == TEXTS || s->kind == LIST);
        least = room < least ? room : least;
    }
    s->capacity = least < INT32_MAX ? least : INT32_MAX;
    s->room = views[MORE].len < INT32_MAX ? views[MORE].len : INT32_MAX;
    if (s->capacity < 0 || s->rows < 0 || s->rows > s->capacity || s->used < 0 || s->used > s->room)
        return misused("a column is fuller than its buffers");
    if ((s->kind == TEXTS || s->kind == LIST) && s->rows == 0)
        *(int32_t *)s->main = 0;
    return 0;
}

/* decode_avro(code, columns, state, buffers, values, rows, begin, refused) -> the buffer that is too small, or -1
 * code: int64s, nodes; the first is the value's. columns: int64 matrix, a line of KIND, END_OF_CHILDREN each.
 * state: int64s, ROW and REFUSED_ROWS, then ROWS, USED, HAS_NULLS of each column; zeros at first. The kernel goes on
 * from there. buffers: list of a list per column: VALID, MAIN, MORE, or None. values: as encode() takes columns; each is
 * read from byte `begin` on. refused: int32s, as many as rows; ~row stands for one that is TOO_LARGE. */
PyObject *decode_avro(PyObject *module, PyObject *args)
{
    enum { CODE, COLUMNS, STATE, REFUSED_OUT, VIEWS };
    PyObject *objects[VIEWS], *lists, *values_object, *result = NULL;
    Py_buffer views[VIEWS] = {{0}}, *sink_views = NULL;
    long long rows, begin;
    column_t values = {0};
    decoder_t d = {0};
    if (!PyArg_ParseTuple(args, "OOOO!OLLO", &objects[CODE], &objects[COLUMNS], &objects[STATE], &PyList_Type, &lists,
                          &values_object, &rows, &begin, &objects[REFUSED_OUT]))
        return NULL;
    if (rows < 0 || rows > INT32_MAX || begin < 0) {
        misused("rows that are none");
        return NULL;
    }
    int64_t count = PyList_Size(lists), opened = 0;
    const int64_t least[VIEWS] = {0, 8 * COLUMN_WIDTH * count, 8 * (STATE_HEAD + STATE_WIDTH * count), 4 * rows};
    for (int i = 0; i < VIEWS; i++)
        if (take_buffer(objects[i], &views[i], i == STATE || i == REFUSED_OUT ? PyBUF_WRITABLE : PyBUF_SIMPLE, least[i]) < 0)
            goto done;
    int64_t *state = views[STATE].buf;
    if (check_columns(views[COLUMNS].buf, count) < 0 ||
        check_code(views[CODE].buf, views[CODE].len / 8, views[COLUMNS].buf, count) < 0)
        goto done;
    d.code = views[CODE].buf;
    d.sinks = PyMem_Calloc((size_t)count, sizeof *d.sinks);
    sink_views = PyMem_Calloc((size_t)count, BUFFERS * sizeof *sink_views);
    if (d.sinks == NULL || sink_views == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; opened < count; opened++) {
        PyObject *list = PyList_GetItem(lists, opened);
        if (!PyList_Check(list) || PyList_Size(list) != BUFFERS) {
            misused("a column has three buffers");
            goto done;
        }
        if (open_sink(&d.sinks[opened], (const int64_t *)views[COLUMNS].buf + opened * COLUMN_WIDTH,
                      state + STATE_HEAD + opened * STATE_WIDTH, list, sink_views + opened * BUFFERS) < 0) {
            opened++;
            goto done;
        }
    }
    if (open_column(values_object, rows, &values) < 0)
        goto done;
    if (values.edges == NULL || state[ROW] < 0 || state[ROW] > rows || state[REFUSED_ROWS] < 0 ||
        state[REFUSED_ROWS] > state[ROW]) {
        misused("a state that the kernel does not leave");
        goto done;
    }
    d.data_end = values.data_end;
    d.full = -1;
    Py_BEGIN_ALLOW_THREADS
    run_rows(&d, &values, rows, begin, state, views[REFUSED_OUT].buf);
    Py_END_ALLOW_THREADS
    for (int64_t i = 0; i < count; i++) {
        int64_t *line = state + STATE_HEAD + i * STATE_WIDTH;
        line[ROWS] = d.sinks[i].rows;
        line[USED] = d.sinks[i].used;
        line[HAS_NULLS] = d.sinks[i].has_nulls;
    }
    result = PyLong_FromLongLong(d.full);
done:
    close_column(&values);
    if (sink_views != NULL)
        drop_buffers(sink_views, opened * BUFFERS);
    drop_buffers(views, VIEWS);
    PyMem_Free(sink_views);
    PyMem_Free(d.sinks);
    return result;
}
