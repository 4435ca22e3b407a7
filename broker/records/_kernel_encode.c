/* Arrow columns to record batches, and the partitions of keys: the twin of column_encoder.py and columns.py.
 * See _kernel.c. */
#include "_kernel.h"

#include <stdlib.h>

/* ---- columns of the caller -------------------------------------------------------------------------------- */

/* From (edges, validity | None, data | None, first row), or None for no column. */
int open_column(PyObject *object, int64_t rows, column_t *column)
{
    PyObject *buffers[COLUMN_VIEWS];
    long long first;
    memset(column, 0, sizeof *column);
    if (object == Py_None)
        return 0;
    if (!PyTuple_Check(object))
        return misused("a column is a tuple");
    if (!PyArg_ParseTuple(object, "OOOL", &buffers[EDGES], &buffers[VALIDITY], &buffers[DATA], &first))
        return -1;
    if (first < 0 || first > INT32_MAX)
        return misused("a column begins outside of its buffers");
    const int64_t least[COLUMN_VIEWS] = {4 * (first + rows + 1), buffers[VALIDITY] == Py_None ? 0 : (first + rows + 7) / 8, 0};
    for (int i = 0; i < COLUMN_VIEWS; i++)
        if (take_buffer(buffers[i], &column->views[i], PyBUF_SIMPLE, least[i]) < 0)
            return -1;
    if (column->views[EDGES].obj == NULL)
        return misused("a column without edges");
    column->edges = (const int32_t *)column->views[EDGES].buf + first;
    column->validity = column->views[VALIDITY].buf;
    column->data = column->views[DATA].buf;
    column->data_end = column->data + column->views[DATA].len;
    column->first = first;
    for (int64_t row = 0; row < rows; row++)
        if (column->edges[row] > column->edges[row + 1])
            return misused("the edges of a column fall");
    if (column->edges[0] < 0 || column->edges[rows] > column->views[DATA].len)
        return misused("a column leaves its data");
    return 0;
}

void close_column(column_t *column)
{
    drop_buffers(column->views, COLUMN_VIEWS);
}

static inline uint8_t *write_bytes(uint8_t *p, const uint8_t *end, const column_t *column, int64_t row, int64_t size)
{
    p = write_varint(p, size);
    if (size <= 0)
        return p;
    copy(p, end, column->data + column->edges[row], column->data_end, size);
    return p + size;
}

/* ---- encoding --------------------------------------------------------------------------------------------- */

typedef struct {
    column_t key, value, header_key, header_value;
    Py_buffer time_view, list_view;
    const int64_t *time;
    const int64_t *lists; /* where each row's headers begin; NULL: none has any */
    int64_t rows;
    /* The plan: a line per batch. */
    int64_t *starts, *sizes, batches, room_for_batches;
} input_t;

static inline int64_t bytes_size(int64_t size)
{
    return varint_size(size) + (size > 0 ? size : 0);
}

static int64_t headers_size(const input_t *in, int64_t row)
{
    if (in->lists == NULL)
        return 1;
    int64_t size = varint_size(in->lists[row + 1] - in->lists[row]);
    for (int64_t i = in->lists[row]; i < in->lists[row + 1]; i++)
        size += bytes_size(size_of(&in->header_key, i)) + bytes_size(size_of(&in->header_value, i));
    return size;
}

/* What of a record does not depend on its batch: attributes, key, value, headers. */
static inline int64_t fixed_size(const input_t *in, int64_t row)
{
    return 1 + bytes_size(size_of(&in->key, row)) + bytes_size(size_of(&in->value, row)) + headers_size(in, row);
}

static inline int64_t time_delta(const input_t *in, int64_t row, int64_t start)
{
    return (int64_t)((uint64_t)in->time[row] - (uint64_t)in->time[start]);
}

static inline int64_t body_size(const input_t *in, int64_t row, int64_t start)
{
    return fixed_size(in, row) + varint_size(time_delta(in, row, start)) +
           varint_size(row - start);
}

static int begin_batch(input_t *in, int64_t row)
{
    if (in->batches + 1 >= in->room_for_batches) {
        in->room_for_batches = 2 * in->room_for_batches + 64;
        int64_t *starts = realloc(in->starts, (size_t)in->room_for_batches * sizeof *starts);
        if (starts != NULL)
            in->starts = starts;
        int64_t *sizes = realloc(in->sizes, (size_t)in->room_for_batches * sizeof *sizes);
        if (sizes != NULL)
            in->sizes = sizes;
        if (starts == NULL || sizes == NULL)
            return -1;
    }
    in->starts[in->batches] = row;
    in->sizes[in->batches++] = 0;
    return 0;
}

/* Cut the rows into batches by an upper bound of each record's size, in which the deltas take `deltas` bytes.
 * Returns 0, -1 without memory, or the size of a record larger than `largest`. */
static int64_t plan(input_t *in, int64_t deltas, int64_t room, int64_t largest)
{
    int64_t bound = 0;
    for (int64_t row = 0; row < in->rows; row++) {
        int64_t size = fixed_size(in, row) + deltas;
        size += varint_size(size);
        if (size > largest)
            return size;
        if (row == 0 || bound + size > room) {
            if (begin_batch(in, row) < 0)
                return -1;
            bound = 0;
        }
        bound += size;
        int64_t body = body_size(in, row, in->starts[in->batches - 1]);
        in->sizes[in->batches - 1] += varint_size(body) + body;
    }
    if (in->batches)
        in->starts[in->batches] = in->rows;
    return 0;
}

static uint8_t *write_record(uint8_t *p, const uint8_t *end, const input_t *in, int64_t row, int64_t start)
{
    p = write_varint(p, body_size(in, row, start));
    *p++ = 0; /* attributes */
    p = write_varint(p, time_delta(in, row, start));
    p = write_varint(p, row - start);
    p = write_bytes(p, end, &in->key, row, size_of(&in->key, row));
    p = write_bytes(p, end, &in->value, row, size_of(&in->value, row));
    if (in->lists == NULL) {
        *p++ = 0;
        return p;
    }
    p = write_varint(p, in->lists[row + 1] - in->lists[row]);
    for (int64_t i = in->lists[row]; i < in->lists[row + 1]; i++) {
        p = write_bytes(p, end, &in->header_key, i, size_of(&in->header_key, i));
        p = write_bytes(p, end, &in->header_value, i, size_of(&in->header_value, i));
    }
    return p;
}

typedef struct {
    long long producer_id, base_sequence;
    int attributes, producer_epoch;
} header_t;

/* The header of a batch at p, but for its checksum. */
static void write_header(uint8_t *p, const input_t *in, int64_t batch, const header_t *h)
{
    int64_t start = in->starts[batch], end = in->starts[batch + 1], newest = in->time[start];
    for (int64_t row = start + 1; row < end; row++)
        newest = in->time[row] > newest ? in->time[row] : newest;
    int64_t sequence = h->base_sequence < 0 ? h->base_sequence : (h->base_sequence + start) & INT32_MAX;
    p = write_big(p, 0, 8); /* base offset: the log assigns it */
    p = write_big(p, (uint64_t)(HEADER_SIZE - LENGTH_END + in->sizes[batch]), 4);
    p = write_big(p, UINT32_MAX, 4); /* leader epoch: none */
    *p++ = 2;
    p = write_big(p, 0, 4);
    p = write_big(p, (uint64_t)h->attributes, 2);
    p = write_big(p, (uint64_t)(end - start - 1), 4);
    p = write_big(p, (uint64_t)in->time[start], 8);
    p = write_big(p, (uint64_t)newest, 8);
    p = write_big(p, (uint64_t)h->producer_id, 8);
    p = write_big(p, (uint64_t)h->producer_epoch, 2);
    p = write_big(p, (uint64_t)sequence, 4);
    write_big(p, (uint64_t)(end - start), 4);
}

/* Fill the bytes objects, whose memory is at `to`. Without a header only the records are written. */
static void write_batches(const input_t *in, uint8_t *const *to, const header_t *header)
{
    for (int64_t batch = 0; batch < in->batches; batch++) {
        int64_t start = in->starts[batch];
        uint8_t *p = to[batch] + (header == NULL ? 0 : HEADER_SIZE);
        const uint8_t *end = p + in->sizes[batch];
        if (header != NULL)
            write_header(to[batch], in, batch, header);
        for (int64_t row = start; row < in->starts[batch + 1]; row++)
            p = write_record(p, end, in, row, start);
    }
#ifdef CRC_BY_CPU
    for (int64_t first = 0; header != NULL && first < in->batches; first += LANES) {
        int lanes = in->batches - first < LANES ? (int)(in->batches - first) : LANES;
        bytes_at at[LANES];
        int64_t size[LANES];
        uint32_t crc[LANES];
        for (int i = 0; i < lanes; i++) {
            at[i] = to[first + i] + CHECKED;
            size[i] = HEADER_SIZE - CHECKED + in->sizes[first + i];
        }
        crc32c_lanes(at, size, lanes, crc);
        for (int i = 0; i < lanes; i++)
            write_big(to[first + i] + CRC_POSITION, crc[i], 4);
    }
#endif
}

/* The bytes objects of the plan, filled. */
static PyObject *make_batches(const input_t *in, const header_t *header)
{
    int64_t before = header == NULL ? 0 : HEADER_SIZE;
    PyObject *list = PyList_New((Py_ssize_t)in->batches);
    uint8_t **to = PyMem_Calloc((size_t)in->batches + 1, sizeof *to);
    if (list == NULL || to == NULL) {
        if (to == NULL)
            PyErr_NoMemory();
        goto failed;
    }
    for (int64_t i = 0; i < in->batches; i++) {
        PyObject *batch = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(before + in->sizes[i]));
        if (batch == NULL)
            goto failed;
        PyList_SetItem(list, (Py_ssize_t)i, batch);
        to[i] = (uint8_t *)PyBytes_AsString(batch);
    }
    Py_BEGIN_ALLOW_THREADS
    write_batches(in, to, header);
    Py_END_ALLOW_THREADS
    PyMem_Free(to);
    return list;
failed:
    PyMem_Free(to);
    Py_XDECREF(list);
    return NULL;
}

static int open_input(PyObject *key, PyObject *value, PyObject *time, PyObject *headers, input_t *in)
{
    PyObject *lists, *header_key, *header_value;
    if (take_buffer(time, &in->time_view, PyBUF_SIMPLE, 8 * in->rows) < 0 || open_column(key, in->rows, &in->key) < 0 ||
        open_column(value, in->rows, &in->value) < 0)
        return -1;
    in->time = in->time_view.buf;
    if (headers == Py_None)
        return 0;
    if (!PyTuple_Check(headers))
        return misused("headers are a tuple");
    if (!PyArg_ParseTuple(headers, "OOO", &lists, &header_key, &header_value) ||
        take_buffer(lists, &in->list_view, PyBUF_SIMPLE, 8 * (in->rows + 1)) < 0)
        return -1;
    in->lists = in->list_view.buf;
    for (int64_t row = 0; row < in->rows; row++)
        if (in->lists[row] > in->lists[row + 1])
            return misused("the edges of the headers fall");
    if (in->lists[0] != 0 || in->lists[in->rows] > INT32_MAX)
        return misused("the headers do not begin with the first");
    if (open_column(header_key, in->lists[in->rows], &in->header_key) < 0)
        return -1;
    return open_column(header_value, in->lists[in->rows], &in->header_value);
}

/* encode(rows, key | None, value, times, headers | None, deltas, room, largest, framed)
 *   -> (list of bytes, first row of each and the number of rows)
 * key, value: (edges, validity | None, data | None, first row). headers: (first header of each row, key, value).
 * framed: (attributes, producer id, producer epoch, base sequence) for whole batches, not compressed,
 * or None for their records alone. Raises OverflowError with the size of a record larger than `largest`. */
PyObject *encode(PyObject *module, PyObject *args)
{
    PyObject *key, *value, *time, *headers, *framed, *result = NULL;
    long long rows, deltas, room, largest;
    header_t header;
    input_t in;
    memset(&in, 0, sizeof in);
    if (!PyArg_ParseTuple(args, "LOOOOLLLO", &rows, &key, &value, &time, &headers, &deltas, &room, &largest, &framed))
        return NULL;
    if (framed != Py_None) {
#ifndef CRC_BY_CPU
        misused("no checksum to frame batches with");
        return NULL;
#endif
        if (!PyTuple_Check(framed)) {
            misused("framed is a tuple");
            return NULL;
        }
        if (!PyArg_ParseTuple(framed, "iLiL", &header.attributes, &header.producer_id, &header.producer_epoch,
                              &header.base_sequence))
            return NULL;
    }
    in.rows = rows;
    if (rows < 0 || rows > INT32_MAX || value == Py_None)
        misused("no rows");
    else if (open_input(key, value, time, headers, &in) == 0) {
        int64_t planned;
        Py_BEGIN_ALLOW_THREADS
        planned = plan(&in, deltas, room, largest);
        Py_END_ALLOW_THREADS
        if (planned < 0)
            PyErr_NoMemory();
        else if (planned > 0)
            PyErr_Format(PyExc_OverflowError, "%lld", (long long)planned);
        else {
            PyObject *batches = make_batches(&in, framed == Py_None ? NULL : &header);
            if (batches != NULL)
                result = Py_BuildValue("Ny#", batches, (const char *)in.starts,
                                       (Py_ssize_t)((in.batches + (in.batches > 0)) * 8));
        }
    }
    free(in.starts);
    free(in.sizes);
    close_column(&in.key);
    close_column(&in.value);
    close_column(&in.header_key);
    close_column(&in.header_value);
    drop_buffers(&in.time_view, 1);
    drop_buffers(&in.list_view, 1);
    return result;
}

/* ---- partitions of keys ----------------------------------------------------------------------------------- */

/* Kafka's Utils.murmur2. */
static uint32_t murmur2(bytes_at p, int64_t size)
{
    const uint32_t m = 0x5BD1E995;
    uint32_t h = 0x9747B28C ^ (uint32_t)size;
    for (; size >= 4; p += 4, size -= 4) {
        uint32_t k = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        k *= m;
        k ^= k >> 24;
        h = h * m ^ k * m;
    }
    if (size > 0) {
        for (int64_t i = 0; i < size; i++)
            h ^= (uint32_t)p[i] << (8 * i);
        h *= m;
    }
    h ^= h >> 13;
    h *= m;
    return h ^ h >> 15;
}

/* partitions(rows, keys, partitions, out): the partition of each key into the int32s of `out`, -1 for null. */
PyObject *partitions(PyObject *module, PyObject *args)
{
    PyObject *keys, *out_object;
    long long rows, count;
    column_t column;
    Py_buffer out = {0};
    int opened = -1;
    if (!PyArg_ParseTuple(args, "LOLO", &rows, &keys, &count, &out_object))
        return NULL;
    memset(&column, 0, sizeof column);
    if (rows < 0 || rows > INT32_MAX || count < 1 || count > INT32_MAX || keys == Py_None)
        misused("no keys or no partitions");
    else
        opened = open_column(keys, rows, &column);
    if (opened == 0 && (opened = take_buffer(out_object, &out, PyBUF_WRITABLE, 4 * rows)) == 0) {
        int32_t *to = out.buf;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t row = 0; row < rows; row++) {
            int64_t size = size_of(&column, row);
            to[row] = size < 0 ? -1 : (int32_t)((murmur2(column.data + column.edges[row], size) & INT32_MAX) % (uint32_t)count);
        }
        Py_END_ALLOW_THREADS
    }
    close_column(&column);
    drop_buffers(&out, 1);
    if (opened < 0)
        return NULL;
    return Py_NewRef(Py_None);
}
