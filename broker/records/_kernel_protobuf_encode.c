/* Columns to messages of Protobuf's wire format, called by spark_connector/formats/protobuf_encoder.py.
 *
 * Messages are written from their last byte to their first, and rows from the last to the first: so the length of what
 * is in a message is known when it has to be written. */
#include "_kernel.h"
#include <stdlib.h>

enum { NODE_FIRST, NODE_COUNT, NODE_ROWS, NODE_WIDTH };
enum { NUMBER, KIND, SHAPE, CHILD, FIELD_WIDTH };
enum { VARINT, FOUR, EIGHT, BYTES, MESSAGE, GROUP, KINDS };
enum { ONE, LIST, PACKED };
enum { MASK, LIST_EDGES, VALUES, TEXT_EDGES, BUFFERS };
enum { WIRE_LENGTH = 2, WIRE_BEGIN_GROUP = 3, WIRE_END_GROUP = 4 };

static const uint8_t WIRE[KINDS] = {0, 5, 1, 2, 2, 3}, SIZE[KINDS] = {8, 4, 8, 1, 0, 0};

struct encoder {
    const int32_t *nodes, *fields;
    const Py_buffer *buffers; /* BUFFERS for each field */
    uint8_t *data;
    int64_t room, used; /* the last `used` bytes of `room` */
};

static int reserve(struct encoder *e, int64_t more)
{
    if (e->room - e->used >= more)
        return 0;
    int64_t room = 2 * e->room > e->used + more ? 2 * e->room : e->used + more + 4096;
    uint8_t *data = malloc((size_t)room);
    if (data == NULL)
        return -1;
    if (e->used > 0)
        memcpy(data + room - e->used, e->data + e->room - e->used, (size_t)e->used);
    free(e->data);
    e->data = data;
    e->room = room;
    return 0;
}

static int put(struct encoder *e, const void *from, int64_t size)
{
    if (reserve(e, size) < 0)
        return -1;
    e->used += size;
    if (size > 0)
        memcpy(e->data + e->room - e->used, from, (size_t)size);
    return 0;
}

static int put_number(struct encoder *e, uint64_t number)
{
    uint8_t bytes[10];
    int size = 0;
    do {
        bytes[size++] = (uint8_t)(number | 0x80);
        number >>= 7;
    } while (number);
    bytes[size - 1] &= 0x7F;
    return put(e, bytes, size);
}

static int put_tag(struct encoder *e, const int32_t *field, int wire)
{
    return put_number(e, (uint64_t)(uint32_t)field[NUMBER] << 3 | (uint64_t)wire);
}

/* -2: the buffers are too small. */
static int put_value(struct encoder *e, const int32_t *field, const Py_buffer *buffers, int64_t at)
{
    const Py_buffer *values = &buffers[VALUES];
    if (field[KIND] == BYTES) {
        const int32_t *edges = buffers[TEXT_EDGES].buf;
        if ((at + 2) * 4 > buffers[TEXT_EDGES].len || edges[at] < 0 || edges[at] > edges[at + 1] || edges[at + 1] > values->len)
            return -2;
        int64_t length = edges[at + 1] - edges[at];
        return put(e, (const uint8_t *)values->buf + edges[at], length) < 0 ? -1 : put_number(e, (uint64_t)length);
    }
    int64_t size = SIZE[field[KIND]];
    if ((at + 1) * size > values->len)
        return -2;
    if (field[KIND] != VARINT)
        return put(e, (const uint8_t *)values->buf + at * size, size);
    uint64_t number;
    memcpy(&number, (const uint8_t *)values->buf + at * 8, 8);
    return put_number(e, number);
}

static int put_node(struct encoder *e, int32_t index, int64_t row);

static int put_message(struct encoder *e, const int32_t *field, int64_t row)
{
    int64_t before = e->used;
    if (row >= e->nodes[field[CHILD] * NODE_WIDTH + NODE_ROWS])
        return -2;
    if (field[KIND] == GROUP && put_tag(e, field, WIRE_END_GROUP) < 0)
        return -1;
    int done = put_node(e, field[CHILD], row);
    if (done < 0 || field[KIND] == GROUP)
        return done;
    return put_number(e, (uint64_t)(e->used - before));
}

static int put_field(struct encoder *e, int32_t index, int64_t row)
{
    const int32_t *field = e->fields + index * FIELD_WIDTH;
    const Py_buffer *buffers = e->buffers + (int64_t)index * BUFFERS;
    int is_message = field[KIND] == MESSAGE || field[KIND] == GROUP, done = 0;
    int64_t begin = row, end = row + 1, before = e->used;
    if (field[SHAPE] != ONE) {
        const int32_t *edges = buffers[LIST_EDGES].buf;
        if ((row + 2) * 4 > buffers[LIST_EDGES].len || edges[row] < 0)
            return -2;
        begin = edges[row];
        end = edges[row + 1];
    }
    else if (buffers[MASK].buf != NULL) {
        if (row >= buffers[MASK].len)
            return -2;
        if (!((const uint8_t *)buffers[MASK].buf)[row])
            return 0;
    }
    for (int64_t at = end - 1; at >= begin && done == 0; at--) {
        done = is_message ? put_message(e, field, at) : put_value(e, field, buffers, at);
        if (done == 0 && field[SHAPE] != PACKED)
            done = put_tag(e, field, WIRE[field[KIND]]);
    }
    if (done == 0 && field[SHAPE] == PACKED && end > begin) {
        done = put_number(e, (uint64_t)(e->used - before));
        if (done == 0)
            done = put_tag(e, field, WIRE_LENGTH);
    }
    return done;
}

static int put_node(struct encoder *e, int32_t index, int64_t row)
{
    const int32_t *node = e->nodes + index * NODE_WIDTH;
    for (int32_t i = node[NODE_FIRST] + node[NODE_COUNT] - 1; i >= node[NODE_FIRST]; i--) {
        int done = put_field(e, i, row);
        if (done < 0)
            return done;
    }
    return 0;
}

static int check_program(const int32_t *nodes, int64_t node_count, const int32_t *fields, int64_t field_count)
{
    for (int64_t i = 0; i < node_count; i++) {
        const int32_t *n = nodes + i * NODE_WIDTH;
        if (n[NODE_FIRST] < 0 || n[NODE_COUNT] < 0 || n[NODE_FIRST] > field_count || n[NODE_COUNT] > field_count - n[NODE_FIRST])
            return misused("no such node");
        for (int32_t j = n[NODE_FIRST]; j < n[NODE_FIRST] + n[NODE_COUNT]; j++) {
            const int32_t *f = fields + (int64_t)j * FIELD_WIDTH;
            int is_message = f[KIND] == MESSAGE || f[KIND] == GROUP;
            if (f[KIND] < 0 || f[KIND] >= KINDS || (is_message && (f[CHILD] <= i || f[CHILD] >= node_count)))
                return misused("no such field"); /* a message's node comes later, so none lies in itself */
        }
    }
    return 0;
}

/* protobuf_encode(rows, prefix, nodes, fields, buffers) -> (edges, data) of Arrow's binary array
 * nodes, fields: int32, in order of numbers within a node; buffers: for each field (mask, edges of lists, values, edges
 * of texts), None where it has none. Raises OverflowError beyond 2 GiB. */
PyObject *protobuf_encode(PyObject *module, PyObject *args)
{
    PyObject *prefix, *nodes, *fields, *buffers, *result = NULL, *edges = NULL, *data = NULL;
    long long rows;
    Py_buffer views[3] = {{0}}, *all = NULL;
    Py_ssize_t taken = 0;
    struct encoder e = {0};
    if (!PyArg_ParseTuple(args, "LOOOO", &rows, &prefix, &nodes, &fields, &buffers))
        return NULL;
    if (take_buffer(prefix, &views[0], PyBUF_SIMPLE, 0) < 0 || take_buffer(nodes, &views[1], PyBUF_SIMPLE, NODE_WIDTH * 4) < 0 ||
        take_buffer(fields, &views[2], PyBUF_SIMPLE, 0) < 0)
        goto done;
    int64_t node_count = views[1].len / (NODE_WIDTH * 4), field_count = views[2].len / (FIELD_WIDTH * 4);
    e.nodes = views[1].buf;
    e.fields = views[2].buf;
    if (!PyList_Check(buffers) || PyList_Size(buffers) != field_count || rows < 0 || rows > e.nodes[NODE_ROWS]) {
        misused("no buffers for each field");
        goto done;
    }
    if (check_program(e.nodes, node_count, e.fields, field_count) < 0)
        goto done;
    all = calloc((size_t)(field_count * BUFFERS + 1), sizeof *all);
    edges = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4);
    if (all == NULL || edges == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (int64_t i = 0; i < field_count; i++) {
        PyObject *one = PyList_GetItem(buffers, i);
        if (one == NULL || !PyTuple_Check(one) || PyTuple_Size(one) != BUFFERS) {
            misused("no buffers for a field");
            goto done;
        }
        for (int j = 0; j < BUFFERS; j++, taken++)
            if (take_buffer(PyTuple_GetItem(one, j), &all[taken], PyBUF_SIMPLE, 0) < 0) {
                taken++;
                goto done;
            }
    }
    e.buffers = all;
    int32_t *edge = (int32_t *)PyBytes_AsString(edges);
    int done = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t row = rows - 1; row >= 0 && done == 0; row--) {
        edge[row + 1] = (int32_t)e.used;
        done = put_node(&e, 0, row);
        if (done == 0)
            done = put(&e, views[0].buf, views[0].len);
        if (done == 0 && e.used > INT32_MAX)
            done = -3;
    }
    for (int64_t row = rows; row > 0 && done == 0; row--)
        edge[row] = (int32_t)(e.used - edge[row]);
    edge[0] = 0;
    Py_END_ALLOW_THREADS
    if (done == 0) {
        data = PyBytes_FromStringAndSize((const char *)e.data + e.room - e.used, e.used);
        result = data == NULL ? NULL : Py_BuildValue("(OO)", edges, data);
    }
    else if (done == -1)
        PyErr_NoMemory();
    else if (done == -2)
        misused("a column is too short");
    else
        PyErr_SetString(PyExc_OverflowError, "the values of a batch have more than 2 GiB");
done:
    drop_buffers(views, 3);
    if (all != NULL)
        drop_buffers(all, taken);
    free(all);
    free(e.data);
    Py_XDECREF(edges);
    Py_XDECREF(data);
    return result;
}
