/* Plain record sections to Arrow buffers, in one pass: the twin of column_decoder.py. See _kernel.c. */
#include "_kernel.h"

enum { PART, START, END, RECORDS, FIRST_OFFSET, LAST_OFFSET, FIRST_TIME, APPEND_TIME, SECTION_WIDTH };

typedef struct {
    int64_t time, offset, key_size, value_size;
    bytes_at key, value, headers, end;
} record_t;

static const char *const NO_ROOM = "more bytes than were reserved";

/* Where the fields of the record at p lie, which must end before `end`. Returns what is wrong, or NULL. */
static inline const char *locate(bytes_at p, bytes_at end, record_t *r)
{
    int64_t length;
    if ((p = read_varint(p, end, &length)) == NULL || length < 1 || length > end - p)
        return "a record's length is negative or beyond its batch";
    end = r->end = p + length;
    p++; /* attributes */
    if ((p = read_varint(p, end, &r->time)) == NULL || (p = read_varint(p, end, &r->offset)) == NULL)
        return "a record ends within its time or offset";
    if ((p = read_varint(p, end, &r->key_size)) == NULL || r->key_size < -1 || r->key_size > end - p)
        return "a key is longer than its record, or its length is negative";
    r->key = p;
    p += r->key_size > 0 ? r->key_size : 0;
    if ((p = read_varint(p, end, &r->value_size)) == NULL || r->value_size < -1 || r->value_size > end - p)
        return "a value is longer than its record, or its length is negative";
    r->value = p;
    p += r->value_size > 0 ? r->value_size : 0;
    if (p >= end)
        return "a record has no room for a header count";
    if (*p == 0 && p + 1 != end)
        return "a record without headers does not end with its value";
    r->headers = p;
    return NULL;
}

/* An Arrow binary array in the making. `wanted` is false where the caller gave no buffers. */
typedef struct {
    int wanted;
    int32_t *edges;
    uint8_t *validity, *data;
    int64_t rows, used, capacity, nulls;
} binary_t;

static inline const char *append(binary_t *column, bytes_at from, bytes_at from_end, int64_t size)
{
    int64_t row = column->rows++;
    if (column->validity != NULL) {
        if ((row & 7) == 0)
            column->validity[row >> 3] = 0;
        column->validity[row >> 3] |= (uint8_t)((size >= 0) << (row & 7));
    }
    if (size < 0)
        column->nulls++;
    else {
        if (size > column->capacity - column->used)
            return NO_ROOM;
        copy(column->data + column->used, column->data + column->capacity, from, from_end, size);
        column->used += size;
    }
    column->edges[row + 1] = (int32_t)column->used;
    return NULL;
}

typedef struct {
    binary_t key, value, header_key, header_value;
    int64_t *offset, *time;
    int32_t *time_type, *list_edges;
    uint8_t *list_validity;
    int64_t rows, most_headers, headers, lists_null;
    int64_t low, high;
} output_t;

static const char *append_headers(output_t *out, const record_t *r, bytes_at from_end)
{
    int64_t count, size;
    bytes_at p = read_varint(r->headers, r->end, &count);
    if (p == NULL || count < 0 || count > (r->end - p) / 2)
        return "a record has more headers than bytes for them";
    if (count > out->most_headers - out->headers)
        return NO_ROOM;
    for (int64_t i = 0; i < count; i++) {
        const char *wrong;
        if ((p = read_varint(p, r->end, &size)) == NULL || size < 0 || size > r->end - p)
            return "a header without a key, or with one longer than its record";
        if ((wrong = append(&out->header_key, p, from_end, size)) != NULL)
            return wrong;
        p += size;
        if ((p = read_varint(p, r->end, &size)) == NULL || size < -1 || size > r->end - p)
            return "a header's value is longer than its record, or its length is negative";
        if ((wrong = append(&out->header_value, p, from_end, size)) != NULL)
            return wrong;
        p += size > 0 ? size : 0;
    }
    if (p != r->end)
        return "a record's headers do not end with it";
    if ((out->rows & 7) == 0)
        out->list_validity[out->rows >> 3] = 0;
    out->list_validity[out->rows >> 3] |= (uint8_t)((count > 0) << (out->rows & 7));
    out->lists_null += count == 0;
    out->headers += count;
    out->list_edges[out->rows + 1] = (int32_t)out->headers;
    return NULL;
}

/* One batch's records behind what `out` has; with out == NULL they are only looked at, and *headers counts theirs. */
static const char *decode_section(const Py_buffer *part, const int64_t *facts, output_t *out, int64_t *headers)
{
    bytes_at p = (bytes_at)part->buf + facts[START], end = (bytes_at)part->buf + facts[END];
    bytes_at from_end = (bytes_at)part->buf + part->len;
    int64_t most = facts[LAST_OFFSET] - facts[FIRST_OFFSET], before = -1;
    const int stamped = facts[APPEND_TIME] != INT64_MIN;
    for (int64_t i = 0; i < facts[RECORDS]; i++) {
        record_t r;
        int64_t time = facts[APPEND_TIME];
        const char *wrong = locate(p, end, &r);
        if (wrong != NULL)
            return wrong;
        p = r.end;
        if (out == NULL) {
            int64_t count;
            if (*r.headers == 0)
                continue;
            if (read_varint(r.headers, r.end, &count) == NULL || count < 1)
                count = 1; /* malformed: decode() is to see it */
            *headers += count < r.end - r.headers ? count : r.end - r.headers;
            continue;
        }
        if (r.offset <= before || r.offset > most)
            return "the offsets of a batch do not rise, or leave it";
        before = r.offset;
        if (!stamped && __builtin_add_overflow(facts[FIRST_TIME], r.time, &time))
            return "a timestamp does not fit in 64 bits";
        int64_t offset = facts[FIRST_OFFSET] + r.offset;
        if (offset < out->low || offset >= out->high)
            continue;
        if (out->key.wanted && (wrong = append(&out->key, r.key, from_end, r.key_size)) != NULL)
            return wrong;
        if (out->value.wanted && (wrong = append(&out->value, r.value, from_end, r.value_size)) != NULL)
            return wrong;
        if (out->offset != NULL)
            out->offset[out->rows] = offset;
        if (out->time != NULL)
            out->time[out->rows] = time;
        if (out->time_type != NULL)
            out->time_type[out->rows] = stamped;
        if (out->header_key.wanted && (wrong = append_headers(out, &r, from_end)) != NULL)
            return wrong;
        out->rows++;
    }
    return p == end ? NULL : "the last record of a batch does not end with it";
}

enum {
    KEY_EDGES, KEY_VALIDITY, KEY_DATA, VALUE_EDGES, VALUE_VALIDITY, VALUE_DATA, OFFSETS, TIMES, TIME_TYPES,
    LIST_EDGES, LIST_VALIDITY, HEADER_KEY_EDGES, HEADER_KEY_DATA,
    HEADER_VALUE_EDGES, HEADER_VALUE_VALIDITY, HEADER_VALUE_DATA, BUFFERS
};

static void set_binary(binary_t *column, const Py_buffer *edges, const Py_buffer *validity, const Py_buffer *data)
{
    memset(column, 0, sizeof *column);
    if (edges->obj == NULL)
        return;
    column->wanted = 1;
    column->edges = edges->buf;
    column->edges[0] = 0;
    column->validity = validity == NULL ? NULL : validity->buf;
    column->data = data->buf;
    column->capacity = data->len < INT32_MAX ? data->len : INT32_MAX;
}

/* Fill `views` and `out` from the tuple of buffers (None where a column is not wanted), for up to `rows` rows. */
static int open_output(PyObject *buffers, int64_t rows, Py_buffer *views, output_t *out)
{
    if (PyTuple_Size(buffers) != BUFFERS)
        return misused("wrong number of buffers");
    for (int i = 0; i < BUFFERS; i++) {
        int64_t least = 0;
        if (i == KEY_EDGES || i == VALUE_EDGES || i == LIST_EDGES)
            least = 4 * (rows + 1);
        else if (i == KEY_VALIDITY || i == VALUE_VALIDITY || i == LIST_VALIDITY)
            least = (rows + 7) / 8;
        else if (i == OFFSETS || i == TIMES)
            least = 8 * rows;
        else if (i == TIME_TYPES)
            least = 4 * rows;
        if (take_buffer(PyTuple_GetItem(buffers, i), &views[i], PyBUF_WRITABLE, least) < 0)
            return -1;
    }
    static const int together[][2] = {
        {KEY_EDGES, KEY_VALIDITY}, {KEY_EDGES, KEY_DATA}, {VALUE_EDGES, VALUE_VALIDITY}, {VALUE_EDGES, VALUE_DATA},
        {LIST_EDGES, LIST_VALIDITY}, {LIST_EDGES, HEADER_KEY_EDGES}, {LIST_EDGES, HEADER_KEY_DATA},
        {LIST_EDGES, HEADER_VALUE_EDGES}, {LIST_EDGES, HEADER_VALUE_VALIDITY}, {LIST_EDGES, HEADER_VALUE_DATA}};
    for (size_t i = 0; i < sizeof together / sizeof *together; i++)
        if ((views[together[i][0]].obj == NULL) != (views[together[i][1]].obj == NULL))
            return misused("half of a column's buffers");
    int64_t most = views[HEADER_KEY_EDGES].len / 4 - 1;
    if (views[LIST_EDGES].obj != NULL &&
        (most < 0 || views[HEADER_VALUE_EDGES].len / 4 - 1 < most || views[HEADER_VALUE_VALIDITY].len < (most + 7) / 8))
        return misused("a buffer for headers is too small");
    set_binary(&out->key, &views[KEY_EDGES], &views[KEY_VALIDITY], &views[KEY_DATA]);
    set_binary(&out->value, &views[VALUE_EDGES], &views[VALUE_VALIDITY], &views[VALUE_DATA]);
    set_binary(&out->header_key, &views[HEADER_KEY_EDGES], NULL, &views[HEADER_KEY_DATA]);
    set_binary(&out->header_value, &views[HEADER_VALUE_EDGES], &views[HEADER_VALUE_VALIDITY], &views[HEADER_VALUE_DATA]);
    out->most_headers = most;
    out->offset = views[OFFSETS].buf;
    out->time = views[TIMES].buf;
    out->time_type = views[TIME_TYPES].buf;
    out->list_edges = views[LIST_EDGES].buf;
    out->list_validity = views[LIST_VALIDITY].buf;
    if (out->list_edges != NULL)
        out->list_edges[0] = 0;
    return 0;
}

/* The sections' plain bytes: a view per item of the list, in memory that the caller frees. */
static Py_buffer *open_parts(PyObject *list, Py_ssize_t *count)
{
    *count = 0;
    if (!PyList_Check(list)) {
        misused("parts must be a list");
        return NULL;
    }
    Py_ssize_t length = PyList_Size(list);
    Py_buffer *parts = PyMem_Calloc((size_t)length + 1, sizeof *parts);
    if (parts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (; *count < length; ++*count)
        if (take_buffer(PyList_GetItem(list, *count), &parts[*count], PyBUF_SIMPLE, 0) < 0) {
            drop_buffers(parts, *count);
            PyMem_Free(parts);
            return NULL;
        }
    return parts;
}

/* How many records the sections announce, or -1 and an exception when one lies outside of its part. */
static int64_t check_sections(const Py_buffer *facts, const Py_buffer *parts, Py_ssize_t part_count)
{
    int64_t rows = 0, lines = facts->len / (SECTION_WIDTH * 8);
    for (const int64_t *line = facts->buf; lines-- > 0; line += SECTION_WIDTH) {
        if (line[PART] < 0 || line[PART] >= part_count || line[START] < 0 || line[START] > line[END] ||
            line[END] > parts[line[PART]].len || line[RECORDS] < 0 || line[RECORDS] > line[END] - line[START] ||
            line[FIRST_OFFSET] < 0 || line[LAST_OFFSET] < line[FIRST_OFFSET])
            return misused("a section lies outside of its part");
        rows += line[RECORDS];
    }
    return rows;
}

/* All sections, in order; see decode_section. */
static const char *decode_sections(const Py_buffer *facts, const Py_buffer *parts, output_t *out, int64_t *headers)
{
    int64_t lines = facts->len / (SECTION_WIDTH * 8);
    const char *wrong = NULL;
    for (const int64_t *line = facts->buf; lines-- > 0 && wrong == NULL; line += SECTION_WIDTH)
        wrong = decode_section(&parts[line[PART]], line, out, headers);
    return wrong;
}

/* count_headers(parts, sections) -> at least as many as the records have, at most as many as they have bytes */
PyObject *count_headers(PyObject *module, PyObject *args)
{
    PyObject *list, *facts_object, *result = NULL;
    Py_buffer facts = {0};
    Py_ssize_t part_count = 0;
    if (!PyArg_ParseTuple(args, "OO", &list, &facts_object))
        return NULL;
    Py_buffer *parts = open_parts(list, &part_count);
    if (parts == NULL)
        return NULL;
    if (take_buffer(facts_object, &facts, PyBUF_SIMPLE, 0) == 0 && check_sections(&facts, parts, part_count) >= 0) {
        const char *wrong;
        int64_t headers = 0;
        Py_BEGIN_ALLOW_THREADS
        wrong = decode_sections(&facts, parts, NULL, &headers);
        Py_END_ALLOW_THREADS
        if (wrong != NULL)
            PyErr_SetString(PyExc_ValueError, wrong);
        else
            result = PyLong_FromLongLong(headers);
    }
    drop_buffers(&facts, 1);
    drop_buffers(parts, part_count);
    PyMem_Free(parts);
    return result;
}

/* decode(parts, sections, low, high, buffers)
 *   -> (rows, key bytes, key nulls, value bytes, value nulls,
 *       headers, rows without headers, header key bytes, header value bytes, header value nulls)
 * parts: list of buffers with plain record sections. sections: int64 matrix, a line of `PART` ... per section.
 * buffers: tuple in the order of `KEY_EDGES` ..., None where a column is not wanted; those of rows hold all records. */
PyObject *decode(PyObject *module, PyObject *args)
{
    PyObject *list, *facts_object, *buffers, *result = NULL;
    long long low, high;
    Py_buffer facts = {0}, views[BUFFERS] = {{0}};
    Py_ssize_t part_count = 0;
    output_t out = {0};
    if (!PyArg_ParseTuple(args, "OOLLO!", &list, &facts_object, &low, &high, &PyTuple_Type, &buffers))
        return NULL;
    Py_buffer *parts = open_parts(list, &part_count);
    if (parts == NULL)
        return NULL;
    int64_t rows = -1;
    if (take_buffer(facts_object, &facts, PyBUF_SIMPLE, 0) == 0)
        rows = check_sections(&facts, parts, part_count);
    if (rows >= 0 && open_output(buffers, rows, views, &out) == 0) {
        const char *wrong;
        out.low = low;
        out.high = high;
        Py_BEGIN_ALLOW_THREADS
        wrong = decode_sections(&facts, parts, &out, NULL);
        Py_END_ALLOW_THREADS
        if (wrong != NULL)
            PyErr_SetString(wrong == NO_ROOM ? PyExc_SystemError : PyExc_ValueError, wrong);
        else
            result = Py_BuildValue("LLLLLLLLLL", (long long)out.rows, (long long)out.key.used, (long long)out.key.nulls,
                                   (long long)out.value.used, (long long)out.value.nulls, (long long)out.headers,
                                   (long long)out.lists_null, (long long)out.header_key.used,
                                   (long long)out.header_value.used, (long long)out.header_value.nulls);
    }
    drop_buffers(views, BUFFERS);
    drop_buffers(&facts, 1);
    drop_buffers(parts, part_count);
    PyMem_Free(parts);
    return result;
}

/* ---- a fetch of uncompressed batches, in one pass ----------------------------------------------------------- */

#ifdef CRC_BY_CPU
/* The position of the first batch whose checksum is wrong, or -1. */
static int64_t bad_crc(const Py_buffer *chunk, int64_t lines[][SECTION_WIDTH], int count)
{
    bytes_at at[LANES];
    int64_t size[LANES];
    uint32_t found[LANES];
    for (int i = 0; i < count; i++) {
        at[i] = (bytes_at)chunk->buf + lines[i][START] - HEADER_SIZE + CHECKED;
        size[i] = lines[i][END] - lines[i][START] + HEADER_SIZE - CHECKED;
    }
    crc32c_lanes(at, size, count, found);
    for (int i = 0; i < count; i++)
        if (found[i] != (uint32_t)read_big(at[i] - CHECKED + CRC_POSITION, 4))
            return lines[i][START] - HEADER_SIZE;
    return -1;
}


/* The section of the batch at p, for batches as a producer sends them most: not compressed, no marker, records there,
 * offsets after `before`. Returns its size, 0 where the chunk has no further whole batch, -1 for any other batch. */
static int64_t plain_section(const Py_buffer *chunk, int64_t position, int64_t before, int64_t *line)
{
    enum { CODEC_AND_CONTROL = 0x27, STAMPED = 0x08, SMALLEST_RECORD = 7 };
    bytes_at p = (bytes_at)chunk->buf + position;
    if (chunk->len - position < HEADER_SIZE)
        return 0;
    int64_t size = LENGTH_END + (int64_t)(int32_t)read_big(p + 8, 4);
    if (size < HEADER_SIZE)
        return -1;
    if (size > chunk->len - position)
        return 0;
    int attributes = (int)read_big(p + 21, 2);
    int64_t last_delta = (int32_t)read_big(p + 23, 4);
    line[PART] = 0;
    line[START] = position + HEADER_SIZE;
    line[END] = position + size;
    line[RECORDS] = (int32_t)read_big(p + 57, 4);
    line[FIRST_OFFSET] = (int64_t)read_big(p, 8);
    line[FIRST_TIME] = (int64_t)read_big(p + 27, 8);
    line[APPEND_TIME] = attributes & STAMPED ? (int64_t)read_big(p + 35, 8) : INT64_MIN;
    if (p[16] != 2 || attributes & CODEC_AND_CONTROL || line[RECORDS] < 1 ||
        line[RECORDS] > (size - HEADER_SIZE) / SMALLEST_RECORD || last_delta < 0 || line[FIRST_OFFSET] <= before ||
        line[FIRST_OFFSET] > INT64_MAX - 1 - last_delta)
        return -1;
    line[LAST_OFFSET] = line[FIRST_OFFSET] + last_delta;
    return size;
}

/* plain_rows(chunk, low, high) -> (records, last offset) of the batches with offsets in [low, high), or None where one
 * of them, or one before, is not plain */
PyObject *plain_rows(PyObject *module, PyObject *args)
{
    PyObject *chunk_object;
    long long low, high;
    Py_buffer chunk = {0};
    if (!PyArg_ParseTuple(args, "OLL", &chunk_object, &low, &high))
        return NULL;
    if (take_buffer(chunk_object, &chunk, PyBUF_SIMPLE, 0) < 0)
        return NULL;
    int64_t line[SECTION_WIDTH], rows = 0, before = -1, position = 0, size;
    Py_BEGIN_ALLOW_THREADS
    while ((size = plain_section(&chunk, position, before, line)) > 0 && line[FIRST_OFFSET] < high) {
        before = line[LAST_OFFSET];
        rows += before >= low ? line[RECORDS] : 0;
        position += size;
    }
    Py_END_ALLOW_THREADS
    drop_buffers(&chunk, 1);
    if (size < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("LL", (long long)rows, (long long)before);
}

/* The records of the batches that plain_rows has counted, each batch while it is in the cache for its checksum.
 * `in_place`: the values move down within the chunk, whose batches are of no use then; *data is where they begin.
 * Returns what is wrong, or NULL; *bad is the position of a batch with a wrong checksum, which ends it, else -1. */
static const char *decode_chunk(const Py_buffer *chunk, int check, int in_place, int64_t most, output_t *out, int64_t *data,
                                int64_t *bad)
{
    int64_t lines[LANES][SECTION_WIDTH], before = -1, position = 0, size = 1;
    for (int more = 1; more;) {
        int found = 0;
        while (found < LANES && more) {
            size = plain_section(chunk, position, before, lines[found]);
            more = size > 0 && lines[found][FIRST_OFFSET] < out->high;
            if (more) {
                before = lines[found][LAST_OFFSET];
                position += size;
                found += before >= out->low;
            }
        }
        if (check && (*bad = bad_crc(chunk, lines, found)) >= 0)
            return NULL;
        for (int i = 0; i < found; i++) {
            const char *wrong;
            if (in_place && out->value.data == NULL) { /* a header before the first value, so that blocks never overlap */
                *data = lines[i][START] - HEADER_SIZE;
                out->value.data = (uint8_t *)chunk->buf + *data;
                out->value.capacity = (chunk->len < INT32_MAX ? chunk->len : INT32_MAX) - *data;
            }
            if (lines[i][RECORDS] > most - out->rows)
                return NO_ROOM;
            if ((wrong = decode_section(chunk, lines[i], out, NULL)) != NULL)
                return wrong;
        }
    }
    return size < 0 ? NO_ROOM : NULL;
}

/* decode_plain(chunk, low, high, check, rows, in place, buffers) -> as decode, then where the values begin in the chunk,
 * and the position of a batch with a wrong checksum, or -1
 * For a chunk in which plain_rows has counted `rows`. buffers: as for decode; in place the buffer of the values' data may
 * have any size. */
PyObject *decode_plain(PyObject *module, PyObject *args)
{
    PyObject *chunk_object, *buffers, *result = NULL;
    long long low, high, rows;
    int check, in_place;
    Py_buffer chunk = {0}, views[BUFFERS] = {{0}};
    output_t out = {0};
    if (!PyArg_ParseTuple(args, "OLLpLpO!", &chunk_object, &low, &high, &check, &rows, &in_place, &PyTuple_Type, &buffers))
        return NULL;
    if (take_buffer(chunk_object, &chunk, in_place ? PyBUF_WRITABLE : PyBUF_SIMPLE, 0) == 0 &&
        (rows >= 0 && rows <= chunk.len ? 0 : misused("more records than bytes")) == 0 &&
        open_output(buffers, rows, views, &out) == 0) {
        const char *wrong;
        int64_t data = 0, bad = -1;
        out.low = low;
        out.high = high;
        if (in_place && out.value.wanted)
            out.value.data = NULL;
        Py_BEGIN_ALLOW_THREADS
        wrong = decode_chunk(&chunk, check, in_place && out.value.wanted, rows, &out, &data, &bad);
        Py_END_ALLOW_THREADS
        if (wrong != NULL)
            PyErr_SetString(wrong == NO_ROOM ? PyExc_SystemError : PyExc_ValueError, wrong);
        else
            result = Py_BuildValue("LLLLLLLLLLLL", (long long)out.rows, (long long)out.key.used, (long long)out.key.nulls,
                                   (long long)out.value.used, (long long)out.value.nulls, (long long)out.headers,
                                   (long long)out.lists_null, (long long)out.header_key.used,
                                   (long long)out.header_value.used, (long long)out.header_value.nulls, (long long)data,
                                   (long long)bad);
    }
    drop_buffers(views, BUFFERS);
    drop_buffers(&chunk, 1);
    return result;
}
#endif
