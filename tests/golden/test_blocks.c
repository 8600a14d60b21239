/* Quantised weights against an independent implementation: rows that the PyPI package `gguf` wrote and the values that
 * it reads in them (tests/golden/README.md). Packed, they read back as those values, bit for bit, whatever the panel's
 * width; products of packed rows are those of the values, in binary64, within docs/numerics.md's bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fpenv.h"
#include "base/half.h"
#include "kernel/kernel.h"
#include "kernel/ref.h"

#ifndef GOLDEN_DIR
#error "GOLDEN_DIR: the folder of the golden files"
#endif

enum { MAX_ROWS = 4, MAX_ELEMENTS = 1024, LINE_BYTES = 8 * MAX_ELEMENTS + 64, MAX_OUT = 17 };

/* One type of the file. */
typedef struct blocks {
    sl_wtype type;
    size_t n_rows, n_in;
    uint8_t rows[MAX_ROWS][4 * MAX_ELEMENTS];
    float values[MAX_ROWS][MAX_ELEMENTS];
} blocks;

static void read_hex(FILE *file, uint8_t *out, size_t n)
{
    static char line[LINE_BYTES];
    assert_non_null(fgets(line, sizeof line, file));
    assert_int_equal(strcspn(line, "\n"), 2 * n);
    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {line[2 * i], line[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
}

static sl_wtype type_named(const char *name)
{
    for (int type = 0; type < SL_WTYPE_COUNT; type++)
        if (strcmp(sl_wtype_name((sl_wtype)type), name) == 0)
            return (sl_wtype)type;
    fail_msg("type %s", name);
    return SL_WTYPE_COUNT;
}

static bool next_type(FILE *file, blocks *out)
{
    char name[16];
    if (fscanf(file, "type %15s %zu %zu\n", name, &out->n_rows, &out->n_in) != 3)
        return false;
    assert_in_range(out->n_rows, 1, MAX_ROWS);
    assert_in_range(out->n_in, 1, MAX_ELEMENTS);
    out->type = type_named(name);
    for (size_t r = 0; r < out->n_rows; r++) {
        static uint8_t raw[4 * MAX_ELEMENTS];
        read_hex(file, out->rows[r], sl_wtype_row_bytes(out->type, out->n_in));
        read_hex(file, raw, 4 * out->n_in);
        for (size_t i = 0; i < out->n_in; i++)
            out->values[r][i] = sl_float_of_bits(raw[4 * i] | (uint32_t)raw[4 * i + 1] << 8 |
                                                 (uint32_t)raw[4 * i + 2] << 16 | (uint32_t)raw[4 * i + 3] << 24);
    }
    return true;
}

/* A matrix of n_out rows, the file's over and over. */
static void pack(const blocks *b, uint8_t *packed, size_t n_out)
{
    size_t row_bytes = sl_wtype_row_bytes(b->type, b->n_in);
    static uint8_t rows[SL_PANEL * 4 * MAX_ELEMENTS];
    for (size_t first = 0; first < n_out; first += SL_PANEL) {
        size_t w = n_out - first < SL_PANEL ? n_out - first : SL_PANEL;
        for (size_t j = 0; j < w; j++)
            memcpy(rows + j * row_bytes, b->rows[(first + j) % b->n_rows], row_bytes);
        sl_weight_pack_panel(b->type, packed + first * row_bytes, rows, w, b->n_in);
    }
}

static void check_rows(const blocks *b, const uint8_t *packed, size_t n_out)
{
    static float row[MAX_ELEMENTS];
    for (size_t o = 0; o < n_out; o++) {
        sl_weight_row(b->type, packed, n_out, b->n_in, o, row);
        for (size_t i = 0; i < b->n_in; i++) {
            float want = b->values[o % b->n_rows][i];
            if (row[i] != want)
                fail_msg("%s, %zu rows, row %zu, element %zu: %a, expected %a", sl_wtype_name(b->type), n_out, o, i,
                         (double)row[i], (double)want);
        }
    }
}

/* Magnitudes of one output's terms, which scale the bound: products and minimums apart, as they may cancel. */
static double mass_of(const blocks *b, const uint8_t *packed, size_t n_out, size_t o, const uint8_t *qrow)
{
    const float *scale = (const float *)(const void *)qrow;
    const int8_t *q = (const int8_t *)(qrow + sl_qrow_q_off(b->n_in));
    size_t first = o / SL_PANEL * SL_PANEL, w = n_out - first < SL_PANEL ? n_out - first : SL_PANEL;
    double mass = 0;
    for (size_t g = 0; g < b->n_in / SL_GROUP; g++) {
        sl_weight_group group;
        sl_weight_group_read(b->type, packed + first * sl_wtype_row_bytes(b->type, b->n_in), w, o - first, g, &group);
        for (size_t e = 0; e < SL_GROUP; e++) {
            double input = fabs((double)scale[g] * q[g * SL_GROUP + e]);
            mass += input * (fabs((double)group.ws * group.q[e]) + fabs((double)group.mw * group.m[e / 16]));
        }
    }
    return mass;
}

/* One input row of ordinary numbers. The golden values are themselves rounded once to binary32: one u more. */
static void check_products(const blocks *b, const uint8_t *packed, size_t n_out)
{
    static float x[MAX_ELEMENTS], out[MAX_OUT];
    _Alignas(64) static uint8_t qrow[3 * MAX_ELEMENTS];
    assert_true(sl_qrow_bytes(b->n_in) <= sizeof qrow);
    for (size_t i = 0; i < b->n_in; i++)
        x[i] = (float)(i * 2654435761u >> 7 & 0xffff) * 0x1p-15f - 1.0f;
    sl_qrow_ref(qrow, x, b->n_in, 1, b->n_in);
    const float *scale = (const float *)(const void *)qrow;
    const int8_t *q = (const int8_t *)(qrow + sl_qrow_q_off(b->n_in));
    const sl_gemm_args args = {.packed = packed, .n_out = n_out, .n_in = b->n_in, .n = n_out, .qrows = qrow,
                               .n_rows = 1, .out = out, .out_stride = n_out};
    sl_kernels kernels;
    sl_kernels_init(&kernels, SL_CPU_LEVEL_REF);
    sl_kernels_gemm(&kernels, b->type)(&args);
    double depth = (sl_wtype_has_minimum(b->type) ? 2.0 : 1.0) * (double)(b->n_in / SL_GROUP) + 2;
    for (size_t o = 0; o < n_out; o++) {
        double want = 0, bound = depth * 0x1.01p-24 * mass_of(b, packed, n_out, o, qrow);
        for (size_t i = 0; i < b->n_in; i++)
            want += (double)b->values[o % b->n_rows][i] * ((double)scale[i / SL_GROUP] * q[i]);
        if (!(fabs((double)out[o] - want) <= bound))
            fail_msg("%s, %zu rows, output %zu: %a, expected %a within %g", sl_wtype_name(b->type), n_out, o,
                     (double)out[o], want, bound);
    }
}

static void blocks_are_read_as_gguf_py_reads_them(void **unused)
{
    (void)unused;
    static blocks b;
    static _Alignas(64) uint8_t packed[MAX_OUT * 4 * MAX_ELEMENTS];
    bool seen[SL_WTYPE_COUNT] = {false};
    FILE *file = fopen(GOLDEN_DIR "/blocks.golden", "r");
    assert_non_null(file);
    sl_fpenv saved = sl_fpenv_enter();
    while (next_type(file, &b)) {
        for (size_t n_out = 1; n_out <= MAX_OUT; n_out++) {
            pack(&b, packed, n_out);
            check_rows(&b, packed, n_out);
            check_products(&b, packed, n_out);
        }
        seen[b.type] = true;
    }
    sl_fpenv_leave(saved);
    fclose(file);
    for (int type = 0; type < SL_WTYPE_COUNT; type++)
        assert_int_equal(sl_wtype_is_quantised((sl_wtype)type), seen[type]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_are_read_as_gguf_py_reads_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
