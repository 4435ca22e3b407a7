/* Messages of Protobuf's wire format to columns, called by spark_connector/formats/protobuf_program.py.
 *
 * A program says what the messages hold: nodes (message types at their places), their fields, the columns that the
 * fields fill, and groups of columns that have the same rows. Group 0 has a row for each value; each repeated field has
 * a group of its own, with a row for each element. A message that is not repeated has the row of the message around it,
 * so a field that comes twice is overwritten, and a message that comes twice is merged, as Protobuf asks.
 *
 * A value that is malformed leaves nothing behind, and its status says why. A value that needs what is not done here (a
 * message of a oneof that is replaced, a required field that is missing so far) is HARD: the caller reads it by itself. */
#include "_kernel.h"
#include <stdlib.h>

enum { NODES, FIELDS, COLUMNS, GROUPS, HEAD };
enum { NODE_FIRST, NODE_COUNT, NODE_GROUP, NODE_WIDTH };
enum { NUMBER, KIND, LIST, COLUMN, ELEMENT, CHILD, ONEOF, ENUM_FIRST, ENUM_COUNT, FLAGS, FIELD_WIDTH };
enum { COLUMN_KIND, COLUMN_GROUP, COLUMN_WIDTH };
enum { FIRST_COLUMN, COLUMN_COUNT, GROUP_WIDTH };
enum { PRESENCE, COUNT, BOOL, INT32, UINT32_WIDE, SINT32, FIXED32, INT64, SINT64, FIXED64, BYTES, STRING, ENUM, SECONDS,
       MESSAGE, GROUP, LEFT_OUT, LEFT_OUT_GROUP, KINDS };
enum { IMPLICIT = 1, REQUIRED = 2, IN_MAP = 4 };
enum { FINE, TRUNCATED, BAD_TAG, BAD_TEXT, OTHER_TYPE, OTHER_SYMBOL, BEYOND_TIME, TOO_DEEP, NO_MEMORY, HARD, TOO_LARGE };
enum { VARINT, EIGHT, LENGTH, BEGIN_GROUP, END_GROUP, FOUR };

#define DEEPEST 100
#define MOST_BYTES (1 << 28) /* of the rows of a value's elements; and more for each byte of it: */
#define MOST_PER_BYTE 16
#define MOST_SECONDS 9223372036851

static const int8_t WIRE[KINDS] = {-1, -1, VARINT, VARINT, VARINT, VARINT, FOUR, VARINT, VARINT, EIGHT, LENGTH, LENGTH,
                                   VARINT, VARINT, LENGTH, BEGIN_GROUP, LENGTH, BEGIN_GROUP};
static const int8_t SIZE[KINDS] = {0, 4, 1, 4, 8, 4, 4, 8, 8, 8, 8, 8, 4, 8};

struct column {
    uint8_t *values; /* SIZE[kind] a row; of texts: begin and length, in 4 bytes each */
    uint8_t *valid;  /* a byte a row */
    int32_t kind;
};

struct group {
    struct column *columns;
    int64_t rows, room, mark, row_size;
    int32_t count;
};

struct decoder {
    const int32_t *nodes, *fields, *symbols;
    struct column *columns;
    struct group *groups;
    const int32_t *column_groups; /* COLUMN_WIDTH each */
    bytes_at data;
    int64_t status;
    int64_t left; /* bytes that the rows of the value's elements may still take */
    int32_t group_count;
};

static bytes_at failed(struct decoder *d, int64_t why, uint32_t number)
{
    d->status = why | (int64_t)number << 8;
    return NULL;
}

/* ---- numbers and text ---- */

static inline bytes_at read_number(bytes_at p, bytes_at end, uint64_t *value)
{
    uint64_t number = 0;
    for (int shift = 0; shift < 70 && p < end; shift += 7) {
        uint64_t byte = *p++;
        number |= (byte & 0x7F) << shift;
        if (!(byte & 0x80)) {
            *value = number; /* what does not fit into 64 bits is left out, as by protobuf */
            return p;
        }
    }
    return NULL;
}

static inline bytes_at read_length(bytes_at p, bytes_at end, int64_t *length)
{
    uint64_t number;
    p = read_number(p, end, &number);
    if (p == NULL || number > (uint64_t)(end - p))
        return NULL;
    *length = (int64_t)number;
    return p;
}

/* ---- fields that nobody wants ---- */

static bytes_at read_tag(struct decoder *d, bytes_at p, bytes_at end, uint32_t *tag)
{
    uint64_t number;
    bytes_at begin = p;
    p = read_number(p, end, &number);
    if (p == NULL)
        return failed(d, TRUNCATED, 0);
    if (p - begin > 5 || number > UINT32_MAX || number >> 3 == 0)
        return failed(d, BAD_TAG, 0);
    *tag = (uint32_t)number;
    return p;
}

static bytes_at skip(struct decoder *d, bytes_at p, bytes_at end, uint32_t tag, int depth)
{
    uint32_t open[DEEPEST + 1];
    int height = 0;
    for (;;) {
        uint64_t number;
        int64_t length;
        switch (tag & 7) {
        case VARINT:
            p = read_number(p, end, &number);
            break;
        case EIGHT:
            p = end - p < 8 ? NULL : p + 8;
            break;
        case FOUR:
            p = end - p < 4 ? NULL : p + 4;
            break;
        case LENGTH:
            p = read_length(p, end, &length);
            p = p == NULL ? NULL : p + length;
            break;
        case BEGIN_GROUP:
            if (depth + height >= DEEPEST)
                return failed(d, TOO_DEEP, tag >> 3);
            open[height++] = tag >> 3;
            break;
        case END_GROUP:
            if (height == 0 || open[--height] != tag >> 3)
                return failed(d, BAD_TAG, tag >> 3);
            break;
        default:
            return failed(d, BAD_TAG, tag >> 3);
        }
        if (p == NULL)
            return failed(d, TRUNCATED, tag >> 3);
        if (height == 0)
            return p;
        p = read_tag(d, p, end, &tag);
        if (p == NULL)
            return NULL;
    }
}

/* ---- rows ---- */

static int make_room(struct group *g, int64_t room)
{
    for (int32_t i = 0; i < g->count; i++) {
        struct column *c = &g->columns[i];
        int64_t size = SIZE[c->kind];
        uint8_t *values = realloc(c->values, (size_t)(room * size + 8));
        if (values == NULL)
            return -1;
        c->values = values;
        memset(values + g->room * size, 0, (size_t)((room - g->room) * size + 8));
        uint8_t *valid = realloc(c->valid, (size_t)room + 8);
        if (valid == NULL)
            return -1;
        c->valid = valid;
        memset(valid + g->room, 0, (size_t)(room - g->room) + 8);
    }
    g->room = room;
    return 0;
}

/* -1 if there is no room for it, and the decoder's status says why. */
static int64_t new_row(struct decoder *d, struct group *g, uint32_t number)
{
    d->left -= g->row_size;
    if (d->left < 0) {
        failed(d, TOO_LARGE, number);
        return -1;
    }
    if (g->rows == g->room && make_room(g, g->room < 256 ? 512 : 2 * g->room) < 0) {
        failed(d, NO_MEMORY, 0);
        return -1;
    }
    return g->rows++;
}

static void clear_rows(struct group *g, int64_t from, int64_t to)
{
    for (int32_t i = 0; from < to && i < g->count; i++) {
        int64_t size = SIZE[g->columns[i].kind];
        memset(g->columns[i].values + from * size, 0, (size_t)((to - from) * size));
        memset(g->columns[i].valid + from, 0, (size_t)(to - from));
    }
}

/* The value at p into a row; p behind it. */
static inline bytes_at read_value(struct decoder *d, const int32_t *field, struct column *c, int64_t row, bytes_at p, bytes_at end)
{
    uint64_t number = 0;
    int64_t length;
    int present = 1;
    switch (WIRE[field[KIND]]) {
    case VARINT:
        p = read_number(p, end, &number);
        break;
    case FOUR: {
        uint32_t four = 0;
        if (end - p < 4)
            return failed(d, TRUNCATED, (uint32_t)field[NUMBER]);
        memcpy(&four, p, 4);
        number = four;
        p += 4;
        break;
    }
    case EIGHT:
        if (end - p < 8)
            return failed(d, TRUNCATED, (uint32_t)field[NUMBER]);
        memcpy(&number, p, 8);
        p += 8;
        break;
    case LENGTH: {
        p = read_length(p, end, &length);
        if (p == NULL)
            break;
        if (field[KIND] == STRING && !is_utf8(p, length))
            return failed(d, BAD_TEXT, (uint32_t)field[NUMBER]);
        int32_t view[2] = {(int32_t)(p - d->data), (int32_t)length};
        memcpy(c->values + row * 8, view, 8);
        c->valid[row] = !(field[FLAGS] & IMPLICIT) || length > 0;
        return p + length;
    }
    }
    if (p == NULL)
        return failed(d, TRUNCATED, (uint32_t)field[NUMBER]);
    switch (field[KIND]) {
    case BOOL:
        number = number != 0;
        c->values[row] = (uint8_t)number;
        break;
    case SINT32: {
        uint32_t bits = (uint32_t)number;
        number = bits >> 1 ^ (0 - (bits & 1));
    } /* fall through */
    case INT32:
    case ENUM:
    case FIXED32: {
        uint32_t bits = (uint32_t)number;
        number = bits;
        memcpy(c->values + row * 4, &bits, 4);
        break;
    }
    case UINT32_WIDE:
        number = (uint32_t)number;
        memcpy(c->values + row * 8, &number, 8);
        break;
    case SECONDS:
        if ((int64_t)number > MOST_SECONDS || (int64_t)number < -MOST_SECONDS)
            return failed(d, BEYOND_TIME, 0);
        memcpy(c->values + row * 8, &number, 8);
        break;
    case SINT64:
        number = number >> 1 ^ (0 - (number & 1));
        memcpy(c->values + row * 8, &number, 8);
        break;
    default:
        memcpy(c->values + row * 8, &number, 8);
    }
    present = !(field[FLAGS] & IMPLICIT) || number != 0;
    c->valid[row] = (uint8_t)present;
    return p;
}

static int is_symbol(struct decoder *d, const int32_t *field, bytes_at p, bytes_at end)
{
    uint64_t number;
    if (field[ENUM_COUNT] == 0 || read_number(p, end, &number) == NULL)
        return 1;
    int32_t wanted = (int32_t)(uint32_t)number, low = 0, high = field[ENUM_COUNT];
    const int32_t *symbols = d->symbols + field[ENUM_FIRST];
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (symbols[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low < field[ENUM_COUNT] && symbols[low] == wanted;
}

static bytes_at walk(struct decoder *d, int32_t node, int64_t row, bytes_at p, bytes_at end, uint32_t group, int depth);

static bytes_at read_message(struct decoder *d, const int32_t *field, int64_t row, bytes_at p, bytes_at end, int depth)
{
    uint32_t group = 0;
    if (depth >= DEEPEST)
        return failed(d, TOO_DEEP, (uint32_t)field[NUMBER]);
    if (field[LIST]) {
        int32_t one = 1, count;
        uint8_t *at = d->columns[field[COLUMN]].values + row * 4;
        row = new_row(d, &d->groups[d->nodes[field[CHILD] * NODE_WIDTH + NODE_GROUP]], (uint32_t)field[NUMBER]);
        if (row < 0)
            return NULL;
        memcpy(&count, at, 4);
        count += one;
        memcpy(at, &count, 4);
    }
    else
        d->columns[field[COLUMN]].valid[row] = 1;
    if (field[KIND] == GROUP)
        group = (uint32_t)field[NUMBER];
    else {
        int64_t length;
        p = read_length(p, end, &length);
        if (p == NULL)
            return failed(d, TRUNCATED, (uint32_t)field[NUMBER]);
        end = p + length;
    }
    return walk(d, field[CHILD], row, p, end, group, depth + 1);
}

/* One element, or as many as a packed field has. */
static bytes_at read_elements(struct decoder *d, const int32_t *field, int64_t row, bytes_at p, bytes_at end, int packed, int is_top)
{
    struct column *element = &d->columns[field[ELEMENT]];
    struct group *group = &d->groups[d->column_groups[field[ELEMENT] * COLUMN_WIDTH + COLUMN_GROUP]];
    int32_t added = 0, count;
    if (packed) {
        int64_t length;
        p = read_length(p, end, &length);
        if (p == NULL)
            return failed(d, TRUNCATED, (uint32_t)field[NUMBER]);
        end = p + length;
    }
    while (!packed || p < end) {
        int wanted = is_symbol(d, field, p, end);
        if (!wanted && is_top)
            return failed(d, OTHER_SYMBOL, (uint32_t)field[NUMBER]);
        int64_t at = new_row(d, group, (uint32_t)field[NUMBER]);
        if (at < 0)
            return NULL;
        p = read_value(d, field, element, at, p, end);
        if (p == NULL)
            return NULL;
        if (wanted)
            added++;
        else {
            clear_rows(group, at, at + 1);
            group->rows = at;
        }
        if (!packed)
            break;
    }
    uint8_t *at = d->columns[field[COLUMN]].values + row * 4;
    memcpy(&count, at, 4);
    count += added;
    memcpy(at, &count, 4);
    return p;
}

/* What was set of a oneof before this field is forgotten; -1 if that is a message, whose fields would have to be, too. */
static int replace(struct decoder *d, int32_t index, int64_t row)
{
    for (int32_t i = d->fields[index * FIELD_WIDTH + ONEOF]; i != index; i = d->fields[i * FIELD_WIDTH + ONEOF]) {
        const int32_t *other = d->fields + i * FIELD_WIDTH;
        if (other[COLUMN] < 0)
            continue;
        struct column *c = &d->columns[other[COLUMN]];
        if (c->valid[row] && (other[KIND] == MESSAGE || other[KIND] == GROUP))
            return -1;
        c->valid[row] = 0;
    }
    return 0;
}

static bytes_at read_field(struct decoder *d, int32_t index, int64_t row, bytes_at p, bytes_at end, uint32_t tag, int depth)
{
    const int32_t *field = d->fields + index * FIELD_WIDTH;
    int wire = tag & 7, kind = field[KIND], is_top = depth == 0;
    int packed = field[LIST] && wire == LENGTH && WIRE[kind] != LENGTH && kind != GROUP && kind != LEFT_OUT_GROUP;
    if (wire != WIRE[kind] && !packed) {
        if (is_top)
            return failed(d, OTHER_TYPE, tag >> 3);
        return field[FLAGS] & IN_MAP ? failed(d, HARD, 0) : skip(d, p, end, tag, depth);
    }
    if (kind == LEFT_OUT || kind == LEFT_OUT_GROUP) {
        if (field[ONEOF] >= 0 && replace(d, index, row) < 0)
            return failed(d, HARD, 0);
        return skip(d, p, end, tag, depth);
    }
    if (field[LIST] && kind != MESSAGE && kind != GROUP)
        return read_elements(d, field, row, p, end, packed, is_top);
    if (!field[LIST] && !is_symbol(d, field, p, end)) {
        if (is_top)
            return failed(d, OTHER_SYMBOL, tag >> 3);
        return field[FLAGS] & IN_MAP ? failed(d, HARD, 0) : skip(d, p, end, tag, depth);
    }
    if (field[ONEOF] >= 0 && replace(d, index, row) < 0)
        return failed(d, HARD, 0);
    if (kind == MESSAGE || kind == GROUP)
        return read_message(d, field, row, p, end, depth);
    return read_value(d, field, &d->columns[field[COLUMN]], row, p, end);
}

/* The index of a field by number, or -1. Fields are in order of numbers; most messages are, too, so `hint` mostly is it. */
static inline int32_t find(struct decoder *d, const int32_t *node, uint32_t number, int32_t *hint)
{
    int32_t low = node[NODE_FIRST], high = low + node[NODE_COUNT];
    for (int32_t i = *hint; i < high && i < *hint + 2; i++)
        if ((uint32_t)d->fields[i * FIELD_WIDTH + NUMBER] == number) {
            *hint = i;
            return i;
        }
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if ((uint32_t)d->fields[middle * FIELD_WIDTH + NUMBER] < number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == node[NODE_FIRST] + node[NODE_COUNT] || (uint32_t)d->fields[low * FIELD_WIDTH + NUMBER] != number)
        return -1;
    *hint = low;
    return low;
}

static bytes_at walk(struct decoder *d, int32_t index, int64_t row, bytes_at p, bytes_at end, uint32_t group, int depth)
{
    const int32_t *node = d->nodes + index * NODE_WIDTH;
    int32_t hint = node[NODE_FIRST];
    int ended = group == 0;
    while (p < end) {
        uint32_t tag = *p;
        if (tag < 0x80 && tag >= 8)
            p++;
        else if ((p = read_tag(d, p, end, &tag)) == NULL)
            return NULL;
        if ((tag & 7) == END_GROUP) {
            if (tag >> 3 != group)
                return failed(d, BAD_TAG, tag >> 3);
            ended = 1;
            break;
        }
        int32_t field = find(d, node, tag >> 3, &hint);
        p = field < 0 ? skip(d, p, end, tag, depth) : read_field(d, field, row, p, end, tag, depth);
        if (p == NULL)
            return NULL;
    }
    if (!ended)
        return failed(d, TRUNCATED, group);
    for (int32_t i = node[NODE_FIRST]; i < node[NODE_FIRST] + node[NODE_COUNT]; i++) {
        const int32_t *field = d->fields + i * FIELD_WIDTH;
        if (field[FLAGS] & REQUIRED && (field[COLUMN] < 0 || !d->columns[field[COLUMN]].valid[row]))
            return failed(d, HARD, 0);
    }
    return p;
}

/* ---- from rows to Arrow ---- */

static PyObject *bits_of(const uint8_t *bytes, int64_t rows)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, (rows + 7) / 8);
    if (made == NULL)
        return NULL;
    uint8_t *bits = (uint8_t *)PyBytes_AsString(made);
    memset(bits, 0, (size_t)((rows + 7) / 8));
    for (int64_t i = 0; i < rows; i++)
        bits[i >> 3] |= (uint8_t)(bytes[i] << (i & 7));
    return made;
}

static PyObject *texts_of(const struct column *c, int64_t rows, bytes_at data, PyObject **offsets)
{
    const int32_t *views = (const int32_t *)c->values;
    int64_t total = 0;
    for (int64_t i = 0; i < rows; i++)
        total += c->valid[i] ? views[2 * i + 1] : 0;
    PyObject *made = total > INT32_MAX ? PyErr_NoMemory() : PyBytes_FromStringAndSize(NULL, total);
    *offsets = made == NULL ? NULL : PyBytes_FromStringAndSize(NULL, (rows + 1) * 4);
    if (*offsets == NULL) {
        Py_XDECREF(made);
        return NULL;
    }
    uint8_t *to = (uint8_t *)PyBytes_AsString(made), *begin = to;
    int32_t *edge = (int32_t *)PyBytes_AsString(*offsets);
    *edge++ = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (c->valid[i]) {
            memcpy(to, data + views[2 * i], (size_t)views[2 * i + 1]);
            to += views[2 * i + 1];
        }
        *edge++ = (int32_t)(to - begin);
    }
    return made;
}

static PyObject *edges_of(const struct column *c, int64_t rows)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4);
    if (made == NULL)
        return NULL;
    int32_t *edge = (int32_t *)PyBytes_AsString(made), sum = 0;
    const int32_t *counts = (const int32_t *)c->values;
    *edge++ = 0;
    for (int64_t i = 0; i < rows; i++)
        *edge++ = sum += counts[i];
    return made;
}

/* (rows, validity as bits, values or edges, data of texts) */
static PyObject *made_of(const struct column *c, int64_t rows, bytes_at data)
{
    PyObject *valid = bits_of(c->valid, rows), *values = NULL, *texts = NULL;
    if (valid == NULL)
        return NULL;
    if (c->kind == BYTES || c->kind == STRING)
        texts = texts_of(c, rows, data, &values);
    else if (c->kind == COUNT)
        values = edges_of(c, rows);
    else if (c->kind == BOOL)
        values = bits_of(c->values, rows);
    else
        values = PyBytes_FromStringAndSize((const char *)c->values, rows * SIZE[c->kind]);
    if (values == NULL) {
        Py_DECREF(valid);
        return NULL;
    }
    if (texts == NULL)
        texts = Py_NewRef(Py_None);
    return Py_BuildValue("(LNNN)", (long long)rows, valid, values, texts);
}

/* ---- the program ---- */

static int lies_within(int32_t first, int32_t count, int32_t all)
{
    return first >= 0 && count >= 0 && first <= all && count <= all - first;
}

static int is_column(const int32_t *head, int32_t index)
{
    return index >= 0 && index < head[COLUMNS];
}

static int check_program(const struct decoder *d, const int32_t *head, const int32_t *groups, int32_t symbols)
{
    for (int32_t i = 0; i < head[GROUPS]; i++)
        if (!lies_within(groups[i * GROUP_WIDTH + FIRST_COLUMN], groups[i * GROUP_WIDTH + COLUMN_COUNT], head[COLUMNS]))
            return misused("a group lies outside of the columns");
    for (int32_t i = 0; i < head[COLUMNS]; i++) {
        const int32_t *c = d->column_groups + i * COLUMN_WIDTH;
        if (c[COLUMN_KIND] < 0 || c[COLUMN_KIND] >= MESSAGE || c[COLUMN_GROUP] < 0 || c[COLUMN_GROUP] >= head[GROUPS])
            return misused("no such column");
    }
    for (int32_t i = 0; i < head[NODES]; i++) {
        const int32_t *n = d->nodes + i * NODE_WIDTH;
        if (!lies_within(n[NODE_FIRST], n[NODE_COUNT], head[FIELDS]) || n[NODE_GROUP] < 0 || n[NODE_GROUP] >= head[GROUPS])
            return misused("no such node");
        for (int32_t j = n[NODE_FIRST]; j < n[NODE_FIRST] + n[NODE_COUNT]; j++) {
            const int32_t *f = d->fields + j * FIELD_WIDTH;
            int is_message = f[KIND] == MESSAGE || f[KIND] == GROUP, kind = f[KIND];
            if (kind < BOOL || kind >= KINDS || f[ONEOF] >= head[FIELDS] || !lies_within(f[ENUM_FIRST], f[ENUM_COUNT], symbols))
                return misused("no such field");
            if (kind == LEFT_OUT || kind == LEFT_OUT_GROUP)
                continue;
            if (!is_column(head, f[COLUMN]) || d->column_groups[f[COLUMN] * COLUMN_WIDTH + COLUMN_GROUP] != n[NODE_GROUP])
                return misused("a field has no column");
            int32_t held = d->column_groups[f[COLUMN] * COLUMN_WIDTH];
            if (held != (f[LIST] ? COUNT : is_message ? PRESENCE : kind))
                return misused("a field has a column of another kind");
            if (is_message ? f[CHILD] <= i || f[CHILD] >= head[NODES]
                           : f[LIST] && (!is_column(head, f[ELEMENT]) || d->column_groups[f[ELEMENT] * COLUMN_WIDTH] != kind))
                return misused("a field has no elements");
        }
    }
    return 0;
}

/* protobuf_decode(values as BinaryColumn, rows, skips | None, program, symbols, statuses)
 *   -> for each column (rows, validity, values or edges, data of texts | None)
 * values: Arrow's binary array; null and negative skips are left out; skips: how many bytes before each message, int32.
 * statuses, int64 of each row, to be written: 0, or a status in the lowest byte with a field's number above it. */
PyObject *protobuf_decode(PyObject *module, PyObject *args)
{
    PyObject *edges, *validity, *data, *skips, *program, *symbols, *statuses, *result = NULL;
    long long first, rows;
    Py_buffer views[7] = {{0}};
    struct decoder d = {0};
    const int32_t *head = NULL;
    if (!PyArg_ParseTuple(args, "(OOOL)LOOOO", &edges, &validity, &data, &first, &rows, &skips, &program, &symbols, &statuses))
        return NULL;
    if (rows < 0 || first < 0 || first > INT32_MAX || rows > INT32_MAX) {
        misused("no such rows");
        return NULL;
    }
    if (take_buffer(edges, &views[0], PyBUF_SIMPLE, rows ? (first + rows + 1) * 4 : 0) < 0 ||
        take_buffer(validity, &views[1], PyBUF_SIMPLE, validity == Py_None ? 0 : (first + rows + 7) / 8) < 0 ||
        take_buffer(data, &views[2], PyBUF_SIMPLE, 0) < 0 ||
        take_buffer(skips, &views[3], PyBUF_SIMPLE, skips == Py_None ? 0 : rows * 4) < 0 ||
        take_buffer(program, &views[4], PyBUF_SIMPLE, HEAD * 4) < 0 || take_buffer(symbols, &views[5], PyBUF_SIMPLE, 0) < 0 ||
        take_buffer(statuses, &views[6], PyBUF_WRITABLE, rows * 8) < 0)
        goto done;
    const int32_t *edge = views[0].buf, *skipped = views[3].buf;
    head = views[4].buf;
    bytes_at bits = views[1].buf;
    int64_t *status = views[6].buf, words = HEAD;
    static const int WIDTHS[HEAD] = {NODE_WIDTH, FIELD_WIDTH, COLUMN_WIDTH, GROUP_WIDTH};
    for (int i = 0; i < HEAD; i++) {
        if (head[i] < (i == FIELDS || i == COLUMNS ? 0 : 1) || head[i] > INT32_MAX / 16) {
            misused("no such program");
            goto done;
        }
        words += (int64_t)head[i] * WIDTHS[i];
    }
    if (views[4].len < words * 4) {
        misused("the program is too short");
        goto done;
    }
    d.nodes = head + HEAD;
    d.fields = d.nodes + (int64_t)head[NODES] * NODE_WIDTH;
    d.column_groups = d.fields + (int64_t)head[FIELDS] * FIELD_WIDTH;
    const int32_t *groups = d.column_groups + (int64_t)head[COLUMNS] * COLUMN_WIDTH;
    d.symbols = views[5].buf;
    d.data = views[2].buf;
    if (check_program(&d, head, groups, (int32_t)(views[5].len / 4)) < 0)
        goto done;
    d.columns = calloc((size_t)head[COLUMNS] + 1, sizeof *d.columns);
    d.groups = calloc((size_t)head[GROUPS], sizeof *d.groups);
    d.group_count = head[GROUPS];
    if (d.columns == NULL || d.groups == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (int32_t i = 0; i < head[COLUMNS]; i++)
        d.columns[i].kind = d.column_groups[i * COLUMN_WIDTH + COLUMN_KIND];
    int whole = 1;
    for (int32_t i = 0; i < head[GROUPS] && whole; i++) {
        d.groups[i].columns = d.columns + groups[i * GROUP_WIDTH + FIRST_COLUMN];
        d.groups[i].count = groups[i * GROUP_WIDTH + COLUMN_COUNT];
        for (int32_t j = 0; j < d.groups[i].count; j++)
            d.groups[i].row_size += SIZE[d.groups[i].columns[j].kind] + 1;
        whole = make_room(&d.groups[i], i == 0 ? rows : 1) == 0;
    }
    if (!whole) {
        PyErr_NoMemory();
        goto done;
    }
    int outside = 0;
    d.groups[0].rows = rows;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = 0; row < rows && !outside && whole; row++) {
        int32_t skip_bytes = skipped == NULL ? 0 : skipped[row];
        status[row] = FINE;
        if (skip_bytes < 0 || (bits != NULL && !get_bit(bits, first + row)))
            continue;
        int64_t begin = edge[first + row], end = edge[first + row + 1];
        if (begin < 0 || end < begin || end > views[2].len || skip_bytes > end - begin) {
            outside = 1;
            break;
        }
        for (int32_t i = 1; i < d.group_count; i++)
            d.groups[i].mark = d.groups[i].rows;
        d.left = MOST_BYTES + MOST_PER_BYTE * (end - begin);
        if (walk(&d, 0, row, d.data + begin + skip_bytes, d.data + end, 0, 0) != NULL)
            continue;
        status[row] = d.status;
        whole = (d.status & 0xFF) != NO_MEMORY;
        clear_rows(&d.groups[0], row, row + 1);
        for (int32_t i = 1; i < d.group_count; i++) {
            clear_rows(&d.groups[i], d.groups[i].mark, d.groups[i].rows);
            d.groups[i].rows = d.groups[i].mark;
        }
    }
    Py_END_ALLOW_THREADS
    if (outside || !whole) {
        if (outside)
            misused("a value lies outside of its buffer");
        else
            PyErr_NoMemory();
        goto done;
    }
    result = PyList_New(0);
    for (int32_t i = 0; i < head[COLUMNS] && result != NULL; i++) {
        int64_t made_rows = d.groups[d.column_groups[i * COLUMN_WIDTH + COLUMN_GROUP]].rows;
        PyObject *made = made_of(&d.columns[i], made_rows, d.data);
        if (made == NULL || PyList_Append(result, made) < 0)
            Py_CLEAR(result);
        Py_XDECREF(made);
    }
done:
    for (int32_t i = 0; d.columns != NULL && d.groups != NULL && i < head[COLUMNS]; i++) {
        free(d.columns[i].values);
        free(d.columns[i].valid);
    }
    free(d.columns);
    free(d.groups);
    drop_buffers(views, 7);
    return result;
}
