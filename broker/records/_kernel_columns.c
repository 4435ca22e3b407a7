/* Values to Arrow columns, row by row, and what the caller gives for it. See _kernel_columns.h. */
#include "_kernel_columns.h"

#include <stdlib.h>

/* The number of two's complement in two parts, if it is smaller than the limit without its sign. */
int append_decimal(decoder_t *d, sink_t *s, uint64_t high, uint64_t low, const int64_t *limit)
{
    uint64_t above = high, below = low, parts[2] = {low, high};
    if (high >> 63) {
        below = ~low + 1;
        above = ~high + (below == 0);
    }
    if (above > (uint64_t)limit[0] || (above == (uint64_t)limit[0] && below >= (uint64_t)limit[1]))
        return REFUSED;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    parts[0] = high, parts[1] = low;
#endif
    return append_number(d, s, parts, 16);
}

enum { FEW = 8, PROBES = 32 };

/* Whether two of the last keys are the same; or may be, if too many share a place of the table. */
int has_twice(const sink_t *keys, int64_t first)
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

/* All values from state[ROW] on. 0 if a buffer became too small before the end. */
static int run_rows(decoder_t *d, const format_t *format, const column_t *values, int64_t rows, int64_t begin, int64_t *state, int32_t *refused)
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
            d->free_rows = MOST_FREE_ROWS + size;
            outcome = format->value(d);
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

/* (code, columns, state, buffers, values, rows, begin, refused) -> the buffer that is too small, or -1
 * code: int64s of the format. columns: int64 matrix, a line of KIND, END_OF_CHILDREN each.
 * state: int64s, ROW and REFUSED_ROWS, then ROWS, USED, HAS_NULLS of each column; zeros at first. The kernel goes on
 * from there. buffers: list of a list per column: VALID, MAIN, MORE, or None. values: as encode() takes columns; each is
 * read from byte `begin` on. refused: int32s, as many as rows; ~row stands for one that is TOO_LARGE. */
PyObject *decode_columns(decoder_t *d, const format_t *format, PyObject *args)
{
    enum { CODE, COLUMNS, STATE, REFUSED_OUT, VIEWS };
    PyObject *objects[VIEWS], *lists, *values_object, *result = NULL;
    Py_buffer views[VIEWS] = {{0}}, *sink_views = NULL;
    long long rows, begin;
    column_t values = {0};
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
        format->check(views[CODE].buf, views[CODE].len / 8, views[COLUMNS].buf, count) < 0)
        goto done;
    d->code = views[CODE].buf;
    d->length = views[CODE].len / 8;
    d->sinks = PyMem_Calloc((size_t)count, sizeof *d->sinks);
    sink_views = PyMem_Calloc((size_t)count, BUFFERS * sizeof *sink_views);
    if (d->sinks == NULL || sink_views == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; opened < count; opened++) {
        PyObject *list = PyList_GetItem(lists, opened);
        if (!PyList_Check(list) || PyList_Size(list) != BUFFERS) {
            misused("a column has three buffers");
            goto done;
        }
        if (open_sink(&d->sinks[opened], (const int64_t *)views[COLUMNS].buf + opened * COLUMN_WIDTH,
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
    d->data_end = values.data_end;
    d->full = -1;
    Py_BEGIN_ALLOW_THREADS
    run_rows(d, format, &values, rows, begin, state, views[REFUSED_OUT].buf);
    Py_END_ALLOW_THREADS
    for (int64_t i = 0; i < count; i++) {
        int64_t *line = state + STATE_HEAD + i * STATE_WIDTH;
        line[ROWS] = d->sinks[i].rows;
        line[USED] = d->sinks[i].used;
        line[HAS_NULLS] = d->sinks[i].has_nulls;
    }
    result = PyLong_FromLongLong(d->full);
done:
    close_column(&values);
    if (sink_views != NULL)
        drop_buffers(sink_views, opened * BUFFERS);
    drop_buffers(views, VIEWS);
    PyMem_Free(sink_views);
    PyMem_Free(d->sinks);
    return result;
}
