/* tok/utf8.c against RFC 3629 and the Unicode Standard's examples (section 3.9, tables 3-8 to 3-11). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tok/tok.h"

typedef struct sink {
    char text[4096];
    size_t size;
} sink;

static void sink_emit(void *arg, const char *text, size_t size)
{
    sink *out = arg;
    assert_true(size > 0 && out->size + size <= sizeof out->text);
    assert_int_equal(sl_utf8_check(text, size), size); /* whole characters only */
    memcpy(out->text + out->size, text, size);
    out->size += size;
}

/* Feeds chunks of chunk_bytes; 0: of random sizes, empty ones too. */
static void stream_all(sink *out, const char *data, size_t size, size_t chunk_bytes)
{
    sl_utf8_stream stream = {0};
    out->size = 0;
    for (size_t at = 0; at < size;) {
        size_t n = chunk_bytes ? chunk_bytes : (size_t)(rand() % 5);
        n = n < size - at ? n : size - at;
        sl_utf8_stream_feed(&stream, data + at, n, sink_emit, out);
        at += n;
    }
    sl_utf8_stream_end(&stream, sink_emit, out);
    assert_int_equal(stream.n_held, 0);
}

static size_t put_char(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)(lead[n] | c);
    return n;
}

static void test_every_character_is_accepted(void **state)
{
    (void)state;
    char text[4];
    for (uint32_t c = 0; c < 0x110000; c++) {
        size_t n = put_char(text, c);
        bool is_surrogate = c >= 0xd800 && c < 0xe000;
        assert_int_equal(sl_utf8_check(text, n), is_surrogate ? 0 : n);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(sl_utf8_check(text, cut), 0);
    }
}

/* Counting what is accepted shows that nothing else is: 2048 - 128 characters of two bytes, and so on. */
static void test_nothing_else_is_accepted(void **state)
{
    (void)state;
    unsigned char text[4];
    size_t n_two = 0, n_three = 0, n_four = 0;
    for (unsigned i = 0x80 << 8; i < 0x10000; i++) {
        text[0] = (unsigned char)(i >> 8);
        text[1] = (unsigned char)i;
        n_two += sl_utf8_check((char *)text, 2) == 2;
        for (unsigned k = 0; k < 256; k++) {
            text[2] = (unsigned char)k;
            n_three += i >= 0xe000 && sl_utf8_check((char *)text, 3) == 3;
            text[3] = 0xbf;
            n_four += i >= 0xf000 && sl_utf8_check((char *)text, 4) == 4;
        }
    }
    assert_int_equal(n_two, 2048 - 128);
    assert_int_equal(n_three, 65536 - 2048 - 2048);
    assert_int_equal(n_four, 1048576 / 64); /* the last byte is fixed */
}

static void test_first_bad_byte_is_found(void **state)
{
    (void)state;
    char text[100];
    for (size_t size = 1; size < sizeof text; size++)
        for (size_t bad = 0; bad < size; bad++) {
            memset(text, 'x', sizeof text);
            text[bad] = (char)0xff;
            assert_int_equal(sl_utf8_check(text, size), bad);
        }
    assert_int_equal(sl_utf8_check("abc\xc3\xa9\xe2\x82", 7), 5); /* a character cut short begins at 5 */
    assert_int_equal(sl_utf8_check("", 0), 0);
}

static void test_maximal_subparts(void **state)
{
    (void)state;
#define R "\xef\xbf\xbd"
    static const struct {
        const char *data, *want;
    } cases[] = {
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A"},
        {"x\xf0\x9f\x98", "x" R},
        {"\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa9z", "\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa9z"},
        {"\xe2\x82\xe2\x82\xac", R "\xe2\x82\xac"},
    };
    static sink out;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t chunk = 1; chunk < 12; chunk++) {
            stream_all(&out, cases[i].data, strlen(cases[i].data), chunk);
            assert_int_equal(out.size, strlen(cases[i].want));
            assert_memory_equal(out.text, cases[i].want, out.size);
        }
}

static void test_chunks_change_nothing(void **state)
{
    (void)state;
    static const unsigned char alphabet[] = {'a',  0x80, 0xbf, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xed,
                                             0x9f, 0xa0, 0xf0, 0x90, 0x98, 0xf4, 0x8f, 0xff, 0xc0};
    static sink whole, cut;
    char data[64];
    for (int round = 0; round < 20000; round++) {
        size_t size = (size_t)rand() % sizeof data;
        for (size_t i = 0; i < size; i++)
            data[i] = (char)alphabet[(size_t)rand() % sizeof alphabet];
        stream_all(&whole, data, size, sizeof data);
        stream_all(&cut, data, size, 0);
        assert_int_equal(whole.size, cut.size);
        assert_memory_equal(whole.text, cut.text, cut.size);
        if (sl_utf8_check(data, size) == size) {
            assert_int_equal(whole.size, size);
            assert_memory_equal(whole.text, data, size);
        }
    }
}

int main(void)
{
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srand(seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character_is_accepted), cmocka_unit_test(test_nothing_else_is_accepted),
        cmocka_unit_test(test_first_bad_byte_is_found),     cmocka_unit_test(test_maximal_subparts),
        cmocka_unit_test(test_chunks_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
