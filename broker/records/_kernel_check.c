/* Whether the records of a batch are what its header says, piece by piece as they come out of the decompressor.
 * The twin of record_check.py, which says what is checked. See _kernel.c. */
#include "_kernel.h"

/* Between two pieces the walk lies in the caller's memory; int64s in the order of record_check.py's `_STATE`. */
typedef struct {
    int64_t count, base_time, now, before, after, needs_key;
    int64_t index, newest, faults;
    int64_t step, number, shift, left, skip, headers, time, key_size;
} walk_t;

enum { LENGTH, ATTRIBUTES, TIME, OFFSET, KEY, IN_KEY, VALUE, IN_VALUE, HEADERS, HEADER_KEY, IN_HEADER_KEY, HEADER_VALUE, IN_HEADER_VALUE };
enum { NO_KEY, OUT_OF_TIME, FAULT_WIDTH = 3 };
enum { INT_BYTES = 5, LONG_BYTES = 10 }; /* the longest varints of Java's readVarint and readVarlong */
enum { WORTH_RELEASING = 16384 };        /* bytes that take longer than to take the GIL back */

/* 1 and a number when a varint ends before `stop`, 0 when more is needed, -1 when it is too long. */
static inline int take(walk_t *w, bytes_at data, int64_t *at, int64_t stop, int most, int64_t *value)
{
    uint64_t number = (uint64_t)w->number;
    int64_t shift = w->shift;
    if (shift == 0 && *at < stop && data[*at] < 0x80) { /* most have one byte, which lies here */
        uint64_t byte = data[(*at)++];
        *value = (int64_t)(byte >> 1) ^ -(int64_t)(byte & 1);
        return 1;
    }
    while (*at < stop) {
        uint64_t byte = data[(*at)++];
        number |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            w->number = w->shift = 0;
            *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
            return 1;
        }
        shift += 7;
        if (shift >= 7 * most)
            return -1;
    }
    w->number = (int64_t)number;
    w->shift = shift;
    return 0;
}

static inline int does_not_fit(int64_t base, int64_t delta)
{
    return delta > 0 ? base > INT64_MAX - delta : base < INT64_MIN - delta;
}

#define FIELD(most)                                                                                  \
    switch (take(w, data, &at, stop, most, &value)) {                                                \
    case -1:                                                                                         \
        return "a number in it is too long";                                                         \
    case 0:                                                                                          \
        if (record_end <= size)                                                                      \
            return "it ends within a field";                                                         \
        goto more;                                                                                   \
    }

#define SKIP()                                                                                       \
    if (w->skip > size - at) {                                                                       \
        w->skip -= size - at;                                                                        \
        at = size;                                                                                   \
        goto more;                                                                                   \
    }                                                                                                \
    at += w->skip;

/* Walks one piece. Returns what is wrong with the record at `index`, or NULL. */
static const char *walk(walk_t *w, bytes_at data, int64_t size, int64_t *faults, int64_t room)
{
    int64_t at = 0, value = 0, record_end = w->left, stop = record_end < size ? record_end : size;
    switch (w->step) {
    case LENGTH:
    next:
        if (w->index == w->count) {
            if (at < size)
                return "bytes follow the last of them";
            return NULL;
        }
        switch (take(w, data, &at, size, INT_BYTES, &value)) {
        case -1:
            return "a number in it is too long";
        case 0:
            w->left = 0;
            return NULL;
        }
        if (value < 1)
            return "its length is not above 0";
        record_end = at + value;
        stop = record_end < size ? record_end : size;
        w->step = ATTRIBUTES; /* fall through */
    case ATTRIBUTES:
        if (at == size)
            goto more;
        at++;
        w->step = TIME; /* fall through */
    case TIME:
        FIELD(LONG_BYTES)
        if (does_not_fit(w->base_time, value))
            return "its timestamp does not fit in 64 bits";
        w->time = w->base_time + value;
        w->step = OFFSET; /* fall through */
    case OFFSET:
        FIELD(INT_BYTES)
        if (value != w->index)
            return "its offset delta is not its place in the batch";
        w->step = KEY; /* fall through */
    case KEY:
        FIELD(INT_BYTES)
        if (value < -1 || value > record_end - at)
            return "its key is longer than it is, or of negative length";
        w->key_size = value;
        w->skip = value < 0 ? 0 : value;
        w->step = IN_KEY; /* fall through */
    case IN_KEY:
        SKIP()
        w->step = VALUE; /* fall through */
    case VALUE:
        FIELD(INT_BYTES)
        if (value < -1 || value > record_end - at)
            return "its value is longer than it is, or of negative length";
        w->skip = value < 0 ? 0 : value;
        w->step = IN_VALUE; /* fall through */
    case IN_VALUE:
        SKIP()
        w->step = HEADERS; /* fall through */
    case HEADERS:
        FIELD(INT_BYTES)
        if (value < 0 || value > (record_end - at) / 2)
            return "it has more headers than bytes for them, or fewer than none";
        w->headers = value;
        w->step = HEADER_KEY; /* fall through */
    case HEADER_KEY:
    header:
        if (w->headers == 0)
            break;
        FIELD(INT_BYTES)
        if (value < 0 || value > record_end - at)
            return "the key of a header is longer than the record, or of negative length";
        w->skip = value;
        w->step = IN_HEADER_KEY; /* fall through */
    case IN_HEADER_KEY:
        SKIP()
        w->step = HEADER_VALUE; /* fall through */
    case HEADER_VALUE:
        FIELD(INT_BYTES)
        if (value < -1 || value > record_end - at)
            return "the value of a header is longer than the record, or of negative length";
        w->skip = value < 0 ? 0 : value;
        w->step = IN_HEADER_VALUE; /* fall through */
    case IN_HEADER_VALUE:
        SKIP()
        w->headers--;
        w->step = HEADER_KEY;
        goto header;
    }
    if (at != record_end)
        return "it does not end where its length says";
    /* Java's arithmetic wraps, so does ours. */
    int64_t age = (int64_t)((uint64_t)w->now - (uint64_t)w->time);
    int64_t ahead = (int64_t)(0 - (uint64_t)age);
    int fault = w->needs_key && w->key_size < 0              ? NO_KEY
                : w->time != -1 && (age > w->before || ahead > w->after) ? OUT_OF_TIME
                                                                         : -1;
    if (fault >= 0 && w->faults++ < room) {
        int64_t *line = faults + (w->faults - 1) * FAULT_WIDTH;
        line[0] = w->index;
        line[1] = fault;
        line[2] = w->time;
    }
    if (w->time > w->newest)
        w->newest = w->time;
    w->index++;
    w->step = LENGTH;
    goto next;
more:
    w->left = record_end - at;
    return NULL;
}

/* check_records(piece, state, faults): walks on, and leaves in `state` how far it came. `faults` is an int64 matrix
 * whose lines take (index, 0 no key or 1 time, timestamp). Raises ValueError. */
PyObject *check_records(PyObject *module, PyObject *args)
{
    PyObject *piece, *state, *faults;
    Py_buffer views[3] = {{0}};
    walk_t w;
    const char *wrong = NULL;
    int done = 0;
    if (!PyArg_ParseTuple(args, "OOO", &piece, &state, &faults))
        return NULL;
    if (take_buffer(piece, &views[0], PyBUF_SIMPLE, 0) == 0 &&
        take_buffer(state, &views[1], PyBUF_WRITABLE, sizeof w) == 0 &&
        take_buffer(faults, &views[2], PyBUF_WRITABLE, 0) == 0 && views[1].buf != NULL) {
        memcpy(&w, views[1].buf, sizeof w);
        int64_t room = views[2].len / (8 * FAULT_WIDTH);
        if (w.step < LENGTH || w.step > IN_HEADER_VALUE || w.faults < 0 || w.skip < 0 || w.left < 0 || w.shift < 0 ||
            w.shift > 63)
            misused("a state that no walk leaves");
        else {
            PyThreadState *released = views[0].len > WORTH_RELEASING ? PyEval_SaveThread() : NULL;
            wrong = walk(&w, views[0].buf, views[0].len, views[2].buf, room);
            if (released != NULL)
                PyEval_RestoreThread(released);
            memcpy(views[1].buf, &w, sizeof w);
            done = wrong == NULL;
            if (wrong != NULL)
                PyErr_SetString(PyExc_ValueError, wrong);
        }
    }
    drop_buffers(views, 3);
    if (!done)
        return NULL;
    return Py_NewRef(Py_None);
}
