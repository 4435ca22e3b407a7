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

/* Rows of the caller, one Arrow batch of them. */
typedef struct {
    column_t key, value, header_key, header_value;
    Py_buffer time_view, list_view;
    const int64_t *time;
    const int64_t *lists; /* where each row's headers begin; NULL: none has any */
    int64_t rows;
} chunk_t;

/* A record batch: what is told of it, and the next one of its slot. */
enum { SLOT, COUNT, FIRST_TIME, NEWEST, FACTS };
typedef struct {
    int64_t fact[FACTS], size, before, next;
    uint8_t *at;
} batch_t;

/* The batch of a slot that rows go to: while they are planned with the bound of its size, then where they are written. */
typedef struct {
    int64_t batch, first, bound, written;
    uint8_t *at;
    const uint8_t *end;
} slot_t;

typedef struct {
    chunk_t *chunks;
    Py_ssize_t chunk_count;
    int64_t rows;
    Py_buffer slots_view;
    const int32_t *slots; /* of each row of all chunks; NULL: there is one slot */
    slot_t *slot;
    int64_t slot_count;
    batch_t *batches;
    int64_t batch_count, room_for_batches;
} input_t;

static inline int64_t bytes_size(int64_t size)
{
    return varint_size(size) + (size > 0 ? size : 0);
}

static int64_t headers_size(const chunk_t *in, int64_t row)
{
    if (in->lists == NULL)
        return 1;
    int64_t size = varint_size(in->lists[row + 1] - in->lists[row]);
    for (int64_t i = in->lists[row]; i < in->lists[row + 1]; i++)
        size += bytes_size(size_of(&in->header_key, i)) + bytes_size(size_of(&in->header_value, i));
    return size;
}

/* What of a record does not depend on its batch: attributes, key, value, headers. */
static inline int64_t fixed_size(const chunk_t *in, int64_t row)
{
    return 1 + bytes_size(size_of(&in->key, row)) + bytes_size(size_of(&in->value, row)) + headers_size(in, row);
}

static inline int64_t time_delta(int64_t time, const batch_t *batch)
{
    return (int64_t)((uint64_t)time - (uint64_t)batch->fact[FIRST_TIME]);
}

static int begin_batch(input_t *in, int64_t to, int64_t time)
{
    if (in->batch_count == in->room_for_batches) {
        in->room_for_batches = 2 * in->room_for_batches + 64;
        batch_t *batches = realloc(in->batches, (size_t)in->room_for_batches * sizeof *batches);
        if (batches == NULL)
            return -1;
        in->batches = batches;
    }
    slot_t *slot = &in->slot[to];
    batch_t *batch = &in->batches[in->batch_count], *last = slot->batch < 0 ? NULL : &in->batches[slot->batch];
    memset(batch, 0, sizeof *batch);
    batch->fact[SLOT] = to;
    batch->fact[FIRST_TIME] = batch->fact[NEWEST] = time;
    if (last == NULL)
        slot->first = in->batch_count;
    else {
        batch->before = last->before + last->fact[COUNT];
        last->next = in->batch_count;
    }
    slot->batch = in->batch_count++;
    slot->bound = 0;
    return 0;
}

/* Cut the rows of each slot into batches by an upper bound of each record's size, in which the deltas take `deltas`
 * bytes. Returns 0, -1 without memory, or the size of a record larger than `largest`. */
static int64_t plan(input_t *in, int64_t deltas, int64_t room, int64_t largest)
{
    const int32_t *to = in->slots;
    for (const chunk_t *chunk = in->chunks; chunk < in->chunks + in->chunk_count; chunk++)
        for (int64_t row = 0; row < chunk->rows; row++) {
            int64_t fixed = fixed_size(chunk, row), most = fixed + deltas, time = chunk->time[row];
            int32_t number = to == NULL ? 0 : *to++;
            slot_t *slot = &in->slot[number];
            most += varint_size(most);
            if (most > largest)
                return most;
            if ((slot->batch < 0 || slot->bound + most > room) && begin_batch(in, number, time) < 0)
                return -1;
            slot->bound += most;
            batch_t *batch = &in->batches[slot->batch];
            int64_t body = fixed + varint_size(time_delta(time, batch)) + varint_size(batch->fact[COUNT]++);
            batch->size += varint_size(body) + body;
            if (time > batch->fact[NEWEST])
                batch->fact[NEWEST] = time;
        }
    return 0;
}

static inline uint8_t *write_record(uint8_t *p, const uint8_t *end, const chunk_t *in, int64_t row, int64_t time, int64_t offset)
{
    p = write_varint(p, fixed_size(in, row) + varint_size(time) + varint_size(offset));
    *p++ = 0; /* attributes */
    p = write_varint(p, time);
    p = write_varint(p, offset);
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
    long long producer_id;
    int attributes, producer_epoch;
    Py_buffer sequences; /* an int64 of each slot */
} header_t;

/* The header of a batch, but for its checksum. */
static void write_header(const batch_t *batch, const header_t *h)
{
    int64_t count = batch->fact[COUNT], sequence = ((const int64_t *)h->sequences.buf)[batch->fact[SLOT]];
    if (sequence >= 0)
        sequence = (sequence + batch->before) & INT32_MAX;
    uint8_t *p = write_big(batch->at, 0, 8); /* base offset: the log assigns it */
    p = write_big(p, (uint64_t)(HEADER_SIZE - LENGTH_END + batch->size), 4);
    p = write_big(p, UINT32_MAX, 4); /* leader epoch: none */
    *p++ = 2;
    p = write_big(p, 0, 4);
    p = write_big(p, (uint64_t)h->attributes, 2);
    p = write_big(p, (uint64_t)(count - 1), 4);
    p = write_big(p, (uint64_t)batch->fact[FIRST_TIME], 8);
    p = write_big(p, (uint64_t)batch->fact[NEWEST], 8);
    p = write_big(p, (uint64_t)h->producer_id, 8);
    p = write_big(p, (uint64_t)h->producer_epoch, 2);
    p = write_big(p, (uint64_t)sequence, 4);
    write_big(p, (uint64_t)count, 4);
}

/* Fill the bytes objects, whose memory is at each batch's `at`. Without a header only the records are written. */
static void write_batches(input_t *in, const header_t *header)
{
    const int32_t *to = in->slots;
    for (slot_t *slot = in->slot; slot < in->slot + in->slot_count; slot++)
        slot->batch = -1;
    for (const chunk_t *chunk = in->chunks; chunk < in->chunks + in->chunk_count; chunk++)
        for (int64_t row = 0; row < chunk->rows; row++) {
            slot_t *slot = &in->slot[to == NULL ? 0 : *to++];
            batch_t *batch = &in->batches[slot->batch < 0 ? slot->first : slot->batch];
            if (slot->batch < 0 || slot->written == batch->fact[COUNT]) {
                slot->batch = slot->batch < 0 ? slot->first : batch->next;
                batch = &in->batches[slot->batch];
                slot->written = 0;
                slot->at = batch->at + (header == NULL ? 0 : HEADER_SIZE);
                slot->end = slot->at + batch->size;
            }
            slot->at = write_record(slot->at, slot->end, chunk, row, time_delta(chunk->time[row], batch), slot->written++);
        }
    for (int64_t i = 0; header != NULL && i < in->batch_count; i++)
        write_header(&in->batches[i], header);
#ifdef CRC_BY_CPU
    for (int64_t first = 0; header != NULL && first < in->batch_count; first += LANES) {
        int lanes = in->batch_count - first < LANES ? (int)(in->batch_count - first) : LANES;
        bytes_at at[LANES];
        int64_t size[LANES];
        uint32_t crc[LANES];
        for (int i = 0; i < lanes; i++) {
            at[i] = in->batches[first + i].at + CHECKED;
            size[i] = HEADER_SIZE - CHECKED + in->batches[first + i].size;
        }
        crc32c_lanes(at, size, lanes, crc);
        for (int i = 0; i < lanes; i++)
            write_big(in->batches[first + i].at + CRC_POSITION, crc[i], 4);
    }
#endif
}

/* The bytes objects of the plan, filled, each with the facts of its batch. */
static PyObject *make_batches(input_t *in, const header_t *header)
{
    int64_t before = header == NULL ? 0 : HEADER_SIZE;
    PyObject *list = PyList_New((Py_ssize_t)in->batch_count);
    for (int64_t i = 0; list != NULL && i < in->batch_count; i++) {
        batch_t *batch = &in->batches[i];
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(before + batch->size));
        const int64_t *fact = batch->fact;
        PyObject *row = bytes == NULL ? NULL
                                      : Py_BuildValue("LLLLN", (long long)fact[SLOT], (long long)fact[COUNT],
                                                      (long long)fact[FIRST_TIME], (long long)fact[NEWEST], bytes);
        if (row == NULL || PyList_SetItem(list, (Py_ssize_t)i, row) < 0)
            Py_CLEAR(list);
        else
            batch->at = (uint8_t *)PyBytes_AsString(bytes);
    }
    if (list != NULL) {
        Py_BEGIN_ALLOW_THREADS
        write_batches(in, header);
        Py_END_ALLOW_THREADS
    }
    return list;
}

static int open_chunk(PyObject *object, chunk_t *in)
{
    PyObject *key, *value, *time, *headers, *lists, *header_key, *header_value;
    long long rows;
    if (!PyTuple_Check(object))
        return misused("a chunk is a tuple");
    if (!PyArg_ParseTuple(object, "LOOOO", &rows, &key, &value, &time, &headers))
        return -1;
    if (rows < 0 || rows > INT32_MAX || value == Py_None)
        return misused("no rows");
    in->rows = rows;
    if (take_buffer(time, &in->time_view, PyBUF_SIMPLE, 8 * rows) < 0 || open_column(key, rows, &in->key) < 0 ||
        open_column(value, rows, &in->value) < 0)
        return -1;
    if (in->time_view.obj == NULL)
        return misused("no times");
    in->time = in->time_view.buf;
    if (headers == Py_None)
        return 0;
    if (!PyTuple_Check(headers))
        return misused("headers are a tuple");
    if (!PyArg_ParseTuple(headers, "OOO", &lists, &header_key, &header_value) ||
        take_buffer(lists, &in->list_view, PyBUF_SIMPLE, 8 * (rows + 1)) < 0)
        return -1;
    if (in->list_view.obj == NULL)
        return misused("no edges of headers");
    in->lists = in->list_view.buf;
    for (int64_t row = 0; row < rows; row++)
        if (in->lists[row] > in->lists[row + 1])
            return misused("the edges of the headers fall");
    if (in->lists[0] != 0 || in->lists[rows] > INT32_MAX)
        return misused("the headers do not begin with the first");
    if (open_column(header_key, in->lists[rows], &in->header_key) < 0)
        return -1;
    return open_column(header_value, in->lists[rows], &in->header_value);
}

static int open_input(PyObject *chunks, PyObject *slots, int64_t slot_count, input_t *in)
{
    if (!PyList_Check(chunks) || slot_count < 1 || slot_count > INT32_MAX)
        return misused("chunks are a list, and there is a slot");
    Py_ssize_t count = PyList_Size(chunks);
    in->chunks = calloc((size_t)count + 1, sizeof *in->chunks);
    in->slot = calloc((size_t)slot_count, sizeof *in->slot);
    if (in->chunks == NULL || in->slot == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    in->slot_count = slot_count;
    for (int64_t i = 0; i < slot_count; i++)
        in->slot[i].batch = -1;
    while (in->chunk_count < count) {
        chunk_t *chunk = &in->chunks[in->chunk_count++];
        if (open_chunk(PyList_GetItem(chunks, in->chunk_count - 1), chunk) < 0)
            return -1;
        in->rows += chunk->rows;
    }
    if (take_buffer(slots, &in->slots_view, PyBUF_SIMPLE, 4 * in->rows) < 0)
        return -1;
    in->slots = in->slots_view.buf;
    for (int64_t row = 0; in->slots != NULL && row < in->rows; row++)
        if (in->slots[row] < 0 || in->slots[row] >= slot_count)
            return misused("a row of no slot");
    return 0;
}

static void close_input(input_t *in)
{
    for (chunk_t *chunk = in->chunks; chunk != NULL && chunk < in->chunks + in->chunk_count; chunk++) {
        close_column(&chunk->key);
        close_column(&chunk->value);
        close_column(&chunk->header_key);
        close_column(&chunk->header_value);
        drop_buffers(&chunk->time_view, 1);
        drop_buffers(&chunk->list_view, 1);
    }
    drop_buffers(&in->slots_view, 1);
    free(in->chunks);
    free(in->slot);
    free(in->batches);
}

static int open_header(PyObject *framed, int64_t slot_count, header_t *header)
{
    PyObject *sequences;
#ifndef CRC_BY_CPU
    return misused("no checksum to frame batches with");
#endif
    if (!PyTuple_Check(framed))
        return misused("framed is a tuple");
    if (!PyArg_ParseTuple(framed, "iLiO", &header->attributes, &header->producer_id, &header->producer_epoch, &sequences))
        return -1;
    if (take_buffer(sequences, &header->sequences, PyBUF_SIMPLE, 8 * slot_count) < 0)
        return -1;
    return header->sequences.obj == NULL ? misused("no sequences") : 0;
}

/* encode(chunks, slots | None, slot count, deltas, room, largest, framed)
 *   -> list of (slot, records, first time, newest time, bytes), the batches of a slot in order
 * chunks: a list of (rows, key | None, value, times, headers | None), where key and value are columns: (edges,
 * validity | None, data | None, first row), and headers: (first header of each row, key, value).
 * slots: an int32 of each row of all chunks, below the slot count; None: all have slot 0. Each slot has batches of its own.
 * framed: (attributes, producer id, producer epoch, base sequence of each slot as int64) for whole batches, not
 * compressed, or None for their records alone. Raises OverflowError with the size of a record larger than `largest`. */
PyObject *encode(PyObject *module, PyObject *args)
{
    PyObject *chunks, *slots, *framed, *result = NULL;
    long long slot_count, deltas, room, largest;
    header_t header;
    input_t in;
    memset(&in, 0, sizeof in);
    memset(&header, 0, sizeof header);
    if (!PyArg_ParseTuple(args, "OOLLLLO", &chunks, &slots, &slot_count, &deltas, &room, &largest, &framed))
        return NULL;
    if (open_input(chunks, slots, slot_count, &in) == 0 &&
        (framed == Py_None || open_header(framed, slot_count, &header) == 0)) {
        int64_t planned;
        Py_BEGIN_ALLOW_THREADS
        planned = plan(&in, deltas, room, largest);
        Py_END_ALLOW_THREADS
        if (planned < 0)
            PyErr_NoMemory();
        else if (planned > 0)
            PyErr_Format(PyExc_OverflowError, "%lld", (long long)planned);
        else
            result = make_batches(&in, framed == Py_None ? NULL : &header);
    }
    close_input(&in);
    drop_buffers(&header.sequences, 1);
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
