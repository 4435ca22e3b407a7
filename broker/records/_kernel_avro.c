/* Avro's binary encoding to Arrow buffers: values of one writer's schema, by a program that says what of them goes where.
 * Called by spark_connector/formats/avro_batches.py, which makes the program. See _kernel_columns.h.
 *
 * So the kernel may refuse what it has no code for (maps with a key twice, numbers of more than 64 bits, values nested
 * very deep), and what it accepts is what Python reads.
 *
 * What is passed over takes at least a byte, or has two parts that do (`Passing` of avro_schema.py). But a byte of a
 * value can be a null of a struct, which takes a row in every column within it, or an item with any number of fields
 * that take no bytes. So there is a limit for the rows of a value that no byte stands for: one beyond it is refused as
 * TOO_LARGE, and Python must not try it. */
#include "_kernel_columns.h"

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

/* Two's complement of 1 to 16 bytes, the highest first. */
static inline int take_decimal(decoder_t *d, sink_t *s, bytes_at from, int64_t size, const int64_t *limit)
{
    if (size < 1 || size > 16)
        return REFUSED;
    uint64_t high = from[0] & 0x80 ? UINT64_MAX : 0, low = high;
    for (int64_t i = 0; i < size; i++) {
        high = high << 8 | low >> 56;
        low = low << 8 | from[i];
    }
    return append_decimal(d, s, high, low, limit);
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
    int64_t number, size;
    while (node[OP] == UNION) { /* its branch in its place: most fields are unions with null */
        TRY(take_long(d, &number));
        if (number < 0 || number >= node[OPERANDS] || ++d->depth > DEEPEST)
            return REFUSED;
        node = d->code + node[NODE_HEAD + number];
    }
    sink_t *s = node[COLUMN] < 0 ? NULL : d->sinks + node[COLUMN];
    const int64_t *operands = node + NODE_HEAD;
    bytes_at from;
    uint32_t word;
    uint64_t bits;
    float single;
    switch (node[OP]) {
    case NULL_VALUE:
        return append_null(d, s);
    case BOOLEAN:
        TRY(take(d, 1, &from));
        return append_bit(d, s, *from != 0);
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
        return take_decimal(d, s, from, size, operands);
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
    int depth = d->depth++;
    if (d->depth > DEEPEST)
        return REFUSED;
    TRY(run_node(d, d->code + at));
    d->depth = depth;
    return GOOD;
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

static int take_value(decoder_t *d)
{
    d->depth = 0;
    return run(d, 0);
}

/* See decode_columns; code: nodes, the first is the value's. */
PyObject *decode_avro(PyObject *module, PyObject *args)
{
    static const format_t avro = {check_code, take_value};
    decoder_t d = {0};
    return decode_columns(&d, &avro, args);
}
