/* Where the batches of a fetch lie, what their headers say, and whether their checksums are right. See _kernel.c. */
#include "_kernel.h"

/* ---- walking the batches of a fetch ----------------------------------------------------------------------- */

enum { POSITION, SIZE, BASE_OFFSET, LAST_DELTA, COUNT, ATTRIBUTES, BASE_TIME, MAX_TIME, PRODUCER, MAGIC, CRC, HEADER_WIDTH };

/* scan(chunk, rows | None) -> (batches, position of a length that no batch can have, or -1, position of the last batch)
 * With rows, an int64 matrix of that many lines, the headers are written to it. */
PyObject *scan(PyObject *module, PyObject *args)
{
    PyObject *chunk_object, *rows_object;
    Py_buffer views[2] = {{0}};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "OO", &chunk_object, &rows_object))
        return NULL;
    if (take_buffer(chunk_object, &views[0], PyBUF_SIMPLE, 0) < 0 ||
        take_buffer(rows_object, &views[1], PyBUF_WRITABLE, 0) < 0)
        goto done;
    bytes_at data = views[0].buf;
    int64_t *row = views[1].buf, length = views[0].len, position = 0, count = 0, wrong = -1, last = 0;
    int64_t room = row == NULL ? INT64_MAX : views[1].len / (HEADER_WIDTH * 8);
    Py_BEGIN_ALLOW_THREADS
    while (length - position >= HEADER_SIZE && count < room) {
        bytes_at p = data + position;
        int64_t size = LENGTH_END + (int64_t)(int32_t)read_big(p + 8, 4);
        if (size < HEADER_SIZE) {
            wrong = position;
            break;
        }
        if (size > length - position)
            break;
        if (row != NULL) {
            row[POSITION] = position;
            row[SIZE] = size;
            row[BASE_OFFSET] = (int64_t)read_big(p, 8);
            row[MAGIC] = (int8_t)p[16];
            row[CRC] = (int64_t)read_big(p + 17, 4);
            row[ATTRIBUTES] = (int16_t)read_big(p + 21, 2);
            row[LAST_DELTA] = (int32_t)read_big(p + 23, 4);
            row[BASE_TIME] = (int64_t)read_big(p + 27, 8);
            row[MAX_TIME] = (int64_t)read_big(p + 35, 8);
            row[PRODUCER] = (int64_t)read_big(p + 43, 8);
            row[COUNT] = (int32_t)read_big(p + 57, 4);
            row += HEADER_WIDTH;
        }
        last = position;
        position += size;
        count++;
    }
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("LLL", (long long)count, (long long)wrong, (long long)last);
done:
    drop_buffers(views, 2);
    return result;
}

/* ---- CRC-32C ---------------------------------------------------------------------------------------------- */

#ifdef CRC_BY_CPU
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc_rest(uint64_t crc, bytes_at p, int64_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; size > 0; p++, size--)
        crc = _mm_crc32_u8((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}

/* The checksums of up to three stretches at once: the instruction takes three cycles, but starts every cycle. */
__attribute__((target("sse4.2"))) void crc32c_lanes(const bytes_at *p, const int64_t *size, int count, uint32_t *out)
{
    uint64_t a = UINT32_MAX, b = UINT32_MAX, c = UINT32_MAX;
    int64_t common = 0;
    if (count == LANES) {
        common = size[0] < size[1] ? size[0] : size[1];
        common = (common < size[2] ? common : size[2]) & ~(int64_t)7;
        for (int64_t i = 0; i < common; i += 8) {
            uint64_t x, y, z;
            memcpy(&x, p[0] + i, 8);
            memcpy(&y, p[1] + i, 8);
            memcpy(&z, p[2] + i, 8);
            a = _mm_crc32_u64(a, x);
            b = _mm_crc32_u64(b, y);
            c = _mm_crc32_u64(c, z);
        }
    }
    const uint64_t begun[LANES] = {a, b, c};
    for (int i = 0; i < count; i++)
        out[i] = crc_rest(begun[i], p[i] + common, size[i] - common);
}

/* first_bad_crc(chunk, rows of scan) -> index of the first batch whose checksum is wrong, or -1 */
PyObject *first_bad_crc(PyObject *module, PyObject *args)
{
    PyObject *chunk_object, *rows_object, *result = NULL;
    Py_buffer views[2] = {{0}};
    if (!PyArg_ParseTuple(args, "OO", &chunk_object, &rows_object))
        return NULL;
    if (take_buffer(chunk_object, &views[0], PyBUF_SIMPLE, 0) < 0 ||
        take_buffer(rows_object, &views[1], PyBUF_SIMPLE, 0) < 0)
        goto done;
    bytes_at data = views[0].buf;
    const int64_t *rows = views[1].buf;
    int64_t length = views[0].len, count = views[1].len / (HEADER_WIDTH * 8), bad = -1, outside = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t first = 0; first < count && bad < 0 && !outside; first += LANES) {
        bytes_at p[LANES];
        int64_t size[LANES];
        uint32_t crc[LANES];
        int lanes = count - first < LANES ? (int)(count - first) : LANES;
        for (int i = 0; i < lanes; i++) {
            const int64_t *row = rows + (first + i) * HEADER_WIDTH;
            if (row[SIZE] < HEADER_SIZE || row[SIZE] > length || row[POSITION] < 0 || row[POSITION] > length - row[SIZE]) {
                outside = 1;
                break;
            }
            p[i] = data + row[POSITION] + CHECKED;
            size[i] = row[SIZE] - CHECKED;
        }
        if (outside)
            break;
        crc32c_lanes(p, size, lanes, crc);
        for (int i = 0; i < lanes && bad < 0; i++)
            if (crc[i] != (uint32_t)rows[(first + i) * HEADER_WIDTH + CRC])
                bad = first + i;
    }
    Py_END_ALLOW_THREADS
    if (outside)
        misused("a batch lies outside of its chunk");
    else
        result = PyLong_FromLongLong(bad);
done:
    drop_buffers(views, 2);
    return result;
}
#endif
