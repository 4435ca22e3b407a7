/* The tokens of JSON, as RFC 8259 has them: each function reads at d->p, and leaves it behind what it took. */
#ifndef PYKAFKA_KERNEL_JSON_TOKENS_H
#define PYKAFKA_KERNEL_JSON_TOKENS_H

#include "_kernel_columns.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef struct {
    bytes_at from;
    int64_t size;
    int has_escapes;
} text_t;

/* ---- tokens --------------------------------------------------------------------------------------------------- */

static inline void pass_space(decoder_t *d)
{
    while (d->p < d->end && (*d->p == ' ' || *d->p == '\n' || *d->p == '\r' || *d->p == '\t'))
        d->p++;
}

/* Whether the next byte is this one, which is passed over then. */
static inline int comes(decoder_t *d, uint8_t byte)
{
    pass_space(d);
    if (d->p >= d->end || *d->p != byte)
        return 0;
    d->p++;
    return 1;
}

static inline int take_word(decoder_t *d, const char *word, int64_t size)
{
    if (d->end - d->p < size || memcmp(d->p, word, (size_t)size) != 0)
        return REFUSED;
    d->p += size;
    return GOOD;
}

/* To the next quote, backslash or control character; whether a byte before it is not ASCII. */
static inline bytes_at pass_plain(bytes_at p, bytes_at end, bytes_at data_end, int *is_wide)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), escape = _mm_set1_epi8('\\'), control = _mm_set1_epi8(31);
    for (; data_end - p >= 16; p += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        __m128i stops = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, escape)),
                                     _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes));
        unsigned stop = (unsigned)_mm_movemask_epi8(stops), wide = (unsigned)_mm_movemask_epi8(bytes);
        if (stop) {
            *is_wide |= (wide & (stop - 1) & ~stop) != 0;
            return p + __builtin_ctz(stop);
        }
        *is_wide |= wide != 0;
    }
#endif
    for (; p < end && *p != '"' && *p != '\\' && *p >= 32; p++)
        *is_wide |= *p >= 0x80;
    return p;
}

/* Behind the opening quote to behind the closing one. UTF-8, but the escapes are not looked into. */
static inline int take_text(decoder_t *d, text_t *t)
{
    int is_wide = 0;
    bytes_at p = d->p;
    t->from = p;
    t->has_escapes = 0;
    for (;; p += 2) {
        p = pass_plain(p, d->end, d->data_end, &is_wide);
        if (p >= d->end || *p < 32)
            return REFUSED;
        if (*p == '"')
            break;
        t->has_escapes = 1;
    }
    t->size = p - t->from;
    d->p = p + 1;
    return is_wide && !is_utf8(t->from, t->size) ? REFUSED : GOOD;
}

/* The four hexadecimal digits at p, or -1. */
static inline int32_t hex4(bytes_at p, bytes_at end)
{
    int32_t number = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10;
        if (p[i] < '0' || digit > 15 || (p[i] > '9' && digit < 10))
            return -1;
        number = number << 4 | digit;
    }
    return number;
}

/* What an escape stands for, and how long it is; -1 for none, and half a surrogate pair is one by itself. */
static inline int32_t unescaped(bytes_at p, bytes_at end, int *size)
{
    static const char KNOWN[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    *size = 2;
    if (end - p < 2)
        return -1;
    for (const char *known = KNOWN; *known; known += 2)
        if ((uint8_t)*known == p[1])
            return known[1];
    if (p[1] != 'u')
        return -1;
    int32_t point = hex4(p + 2, end), low;
    *size = 6;
    if (point >> 10 == 0xD800 >> 10 && end - p >= 8 && p[6] == '\\' && p[7] == 'u' &&
        (low = hex4(p + 8, end)) >> 10 == 0xDC00 >> 10) {
        *size = 12;
        return 0x10000 + ((point & 0x3FF) << 10 | (low & 0x3FF));
    }
    return point;
}

/* The text without its escapes; its size, which is no larger, or -1. */
static inline int64_t unescape(const text_t *t, uint8_t *to)
{
    uint8_t *begin = to;
    int size;
    for (bytes_at p = t->from, end = p + t->size; p < end; p += size) {
        if (*p != '\\') {
            *to++ = *p;
            size = 1;
            continue;
        }
        int32_t point = unescaped(p, end, &size);
        if (point < 0 || point >> 11 == 0xD800 >> 11)
            return -1;
        if (point < 0x80) {
            *to++ = (uint8_t)point;
            continue;
        }
        int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
        *to++ = (uint8_t)((more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0) | point >> 6 * more);
        while (more-- > 0)
            *to++ = (uint8_t)(0x80 | (point >> 6 * more & 0x3F));
    }
    return to - begin;
}

static inline int pass_text(decoder_t *d)
{
    text_t t;
    int size;
    TRY(take_text(d, &t));
    if (t.has_escapes)
        for (bytes_at p = t.from, end = p + t.size; p < end; p += size) {
            size = 1;
            if (*p == '\\' && unescaped(p, end, &size) < 0)
                return REFUSED;
        }
    return GOOD;
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

enum { MOST_DIGITS = 19, FAR = 10000 };

/* `digits` × 10 ** `exponent`, if there are no more than MOST_DIGITS. */
typedef struct {
    bytes_at from, end;
    uint64_t digits;
    int64_t exponent, count; /* of digits without leading zeros */
    int is_negative, is_whole, has_exponent;
} number_t;

static inline bytes_at take_digits(bytes_at p, bytes_at end, number_t *n)
{
    uint64_t digits = n->digits;
    while (n->count == 0 && p < end && *p == '0')
        p++;
    bytes_at first = p;
    for (; p < end && (uint8_t)(*p - '0') <= 9; p++)
        digits = digits * 10 + (uint64_t)(*p - '0'); /* too many wrap around, and are not used */
    n->digits = digits;
    n->count += p - first;
    return p;
}

static inline int take_number(decoder_t *d, number_t *n)
{
    bytes_at p = d->p, end = d->end, from;
    *n = (number_t){.from = p, .is_whole = 1};
    n->is_negative = p < end && *p == '-';
    p += n->is_negative;
    from = p;
    p = take_digits(p, end, n);
    if (p == from || (*from == '0' && p > from + 1))
        return REFUSED;
    if (p < end && *p == '.') {
        from = ++p;
        n->is_whole = 0;
        p = take_digits(p, end, n);
        if (p == from)
            return REFUSED;
        n->exponent = from - p;
    }
    if (p < end && (*p | 32) == 'e') {
        int64_t exponent = 0;
        n->is_whole = 0;
        n->has_exponent = 1;
        p++;
        int is_below = p < end && *p == '-';
        p += p < end && (*p == '-' || *p == '+');
        for (from = p; p < end && (uint8_t)(*p - '0') <= 9; p++)
            exponent = exponent < FAR ? exponent * 10 + (*p - '0') : exponent;
        if (p == from)
            return REFUSED;
        n->exponent += is_below ? -exponent : exponent;
    }
    n->end = d->p = p;
    return GOOD;
}

#endif
