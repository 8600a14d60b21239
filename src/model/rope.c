#include "model/rope.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "kernel/math64.h"

#define PI 3.14159265358979323846

static const struct {
    const char *name;
    sl_rope_kind kind;
} kinds[] = {
    {"none", SL_ROPE_KIND_LINEAR},   {"linear", SL_ROPE_KIND_LINEAR},       {"yarn", SL_ROPE_KIND_YARN},
    {"llama3", SL_ROPE_KIND_LLAMA3}, {"longrope", SL_ROPE_KIND_LONG_SHORT},
};

bool sl_rope_kind_parse(const char *name, size_t size, sl_rope_kind *out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strlen(kinds[i].name) == size && memcmp(kinds[i].name, name, size) == 0) {
            *out = kinds[i].kind;
            return true;
        }
    }
    return false;
}

const char *sl_rope_kind_name(sl_rope_kind kind)
{
    static const char *const names[] = {"linear", "yarn", "llama3", "longrope, short set", "longrope, long set"};
    return (size_t)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

/* --------------------------------------------------------------------------------------------------------- reading */

typedef struct reader {
    const sl_gguf *gguf;
    const char *arch;
    char key[96];
} reader;

static const char *key_of(reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

static bool has(reader *r, const char *name)
{
    return sl_gguf_find(r->gguf, key_of(r, name)) != NULL;
}

/* Leaves *out where there is no such key. */
static sl_status real_or(reader *r, const char *name, double low, double high, double *out, sl_err *err)
{
    if (!has(r, name))
        return SL_OK;
    sl_status status = sl_gguf_get_float(r->gguf, key_of(r, name), out, err);
    if (status == SL_OK && !(*out >= low && *out <= high))
        status = sl_err_set(err, SL_DAMAGED, "%s: %s is %g, expected %g to %g", sl_gguf_path(r->gguf), r->key, *out,
                            low, high);
    return status;
}

/* A factor without a type is linear, as is the older key: so llama.cpp reads them. */
static sl_status read_kind(reader *r, const sl_arch *arch, sl_rope *rope, sl_err *err)
{
    sl_gguf_string type = {"linear", 6};
    sl_status status = SL_OK;
    if (has(r, "rope.scaling.type"))
        status = sl_gguf_get_string(r->gguf, key_of(r, "rope.scaling.type"), &type, err);
    else if ((arch->flags & SL_ARCH_LONG_FACTORS) && sl_gguf_tensor_find(r->gguf, "rope_factors_long.weight"))
        type = (sl_gguf_string){"longrope", 8};
    if (status != SL_OK)
        return status;
    if (!sl_rope_kind_parse(type.data, type.size, &rope->kind))
        return sl_err_set(err, SL_REFUSED,
                          "%s: RoPE scaling '%.*s' is not supported (known: none, linear, yarn, llama3, longrope)",
                          sl_gguf_path(r->gguf), (int)(type.size < 64 ? type.size : 64), type.data);
    if (type.size == 4 && memcmp(type.data, "none", 4) == 0)
        return SL_OK;
    if (rope->kind == SL_ROPE_KIND_LONG_SHORT && !sl_gguf_tensor_find(r->gguf, "rope_factors_long.weight"))
        return sl_err_set(err, SL_REFUSED, "%s: RoPE scaling is 'longrope', but there is no rope_factors_long.weight",
                          sl_gguf_path(r->gguf));
    double factor = 1.0;
    status = real_or(r, has(r, "rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear", 0.0, 1e6, &factor,
                     err);
    if (factor == 0.0) /* written by converters for "none" */
        factor = 1.0;
    if (status == SL_OK && factor < 1.0)
        status = sl_err_set(err, SL_DAMAGED, "%s: %s is %g, expected 1 to 1e6", sl_gguf_path(r->gguf), r->key, factor);
    rope->factor = rope->kind == SL_ROPE_KIND_LONG_SHORT ? 1.0 : factor;
    return status;
}

static sl_status read_numbers(reader *r, sl_rope *rope, sl_err *err)
{
    const struct {
        const char *name;
        double low, high, *out;
    } numbers[] = {
        {"rope.freq_base", 1.0, 1e15, &rope->base},
        {"rope.freq_base_swa", 1.0, 1e15, &rope->sliding_base},
        {"rope.scaling.original_context_length", 1.0, 1e9, &rope->original},
        {"rope.scaling.attn_factor", 1e-3, 1e3, &rope->magnitude},
        {"rope.scaling.yarn_attn_factor", 1e-3, 1e3, &rope->magnitude},
        {"rope.scaling.yarn_ext_factor", 0.0, 1.0, &rope->extrapolate},
        {"rope.scaling.yarn_beta_fast", 1e-3, 1e6, &rope->fast},
        {"rope.scaling.yarn_beta_slow", 1e-3, 1e6, &rope->slow},
        {"rope.scaling.low_freq_factor", 1e-3, 1e6, &rope->low},
        {"rope.scaling.high_freq_factor", 1e-3, 1e6, &rope->high},
    };
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < sizeof numbers / sizeof numbers[0]; i++) {
        const sl_gguf_value *value = sl_gguf_find(r->gguf, key_of(r, numbers[i].name));
        if (value && value->type != SL_GGUF_TYPE_F32 && value->type != SL_GGUF_TYPE_F64) {
            uint64_t whole = 0;
            status = sl_gguf_get_uint(r->gguf, r->key, (uint64_t)(numbers[i].low < 1.0 ? 0.0 : numbers[i].low),
                                      (uint64_t)numbers[i].high, &whole, err);
            if (status == SL_OK)
                *numbers[i].out = (double)whole;
        } else {
            status = real_or(r, numbers[i].name, numbers[i].low, numbers[i].high, numbers[i].out, err);
        }
    }
    return status;
}

sl_status sl_rope_read(const sl_gguf *gguf, const sl_arch *arch, uint32_t head_dim, uint32_t n_ctx_train, sl_rope *out,
                       sl_err *err)
{
    reader r = {.gguf = gguf, .arch = arch->name};
    *out = (sl_rope){.dims = head_dim,
                     .base = 10000.0,
                     .factor = 1.0,
                     .original = n_ctx_train,
                     .magnitude = 1.0,
                     .fast = 32.0,
                     .slow = 1.0,
                     .low = 1.0,
                     .high = 4.0,
                     .extrapolate = 1.0,
                     .sliding_base = arch->sliding_rope_base};
    sl_status status = read_numbers(&r, out, err);
    if (status == SL_OK && has(&r, "rope.dimension_count")) {
        uint64_t dims = 0;
        status = sl_gguf_get_uint(gguf, key_of(&r, "rope.dimension_count"), 1, UINT32_MAX, &dims, err);
        out->dims = (uint32_t)dims;
    }
    if (status != SL_OK)
        return status;
    if (out->dims % 2 != 0 || out->dims > head_dim)
        return sl_err_set(err, SL_DAMAGED, "%s: %s.rope.dimension_count is %u, expected even and at most %u",
                          sl_gguf_path(gguf), arch->name, out->dims, head_dim);
    if (out->low >= out->high || out->slow > out->fast)
        return sl_err_set(err, SL_DAMAGED, "%s: %s.rope.scaling: low factor %g, high %g; beta slow %g, fast %g",
                          sl_gguf_path(gguf), arch->name, out->low, out->high, out->slow, out->fast);
    return read_kind(&r, arch, out, err);
}

/* ----------------------------------------------------------------------------------------------------- frequencies */

static double plain(double base, uint32_t dims, uint32_t pair)
{
    return sl_pow64(base, -2.0 * (double)pair / (double)dims);
}

static double bounded(double x, double low, double high)
{
    return !(x > low) ? low : x > high ? high : x; /* a NaN is low */
}

static double floor64(double x)
{
    x = bounded(x, -1e9, 1e9);
    double whole = (double)(int64_t)x;
    return whole > x ? whole - 1.0 : whole;
}

/* YaRN: the dimension that turns `turns` times over the original length. */
static double dim_of_turns(const sl_rope *rope, double turns)
{
    return (double)rope->dims * sl_log64(rope->original / (turns * 2.0 * PI)) / (2.0 * sl_log64(rope->base));
}

static double yarn(const sl_rope *rope, double freq, uint32_t pair)
{
    double start = bounded(floor64(dim_of_turns(rope, rope->fast)), 0.0, (double)rope->dims - 1.0);
    double end = bounded(-floor64(-dim_of_turns(rope, rope->slow)), 0.0, (double)rope->dims - 1.0);
    double width = end - start > 0.001 ? end - start : 0.001;
    double keep = (1.0 - bounded(((double)pair - start) / width, 0.0, 1.0)) * rope->extrapolate;
    return freq / rope->factor * (1.0 - keep) + freq * keep;
}

static double llama3(const sl_rope *rope, double freq)
{
    double waves = rope->original * freq / (2.0 * PI); /* over the original length */
    if (waves > rope->high)
        return freq;
    if (waves < rope->low)
        return freq / rope->factor;
    double keep = (waves - rope->low) / (rope->high - rope->low);
    return (1.0 - keep) * freq / rope->factor + keep * freq;
}

void sl_rope_frequencies(const sl_rope *rope, const float *divisors, double *freq)
{
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        freq[i] = plain(rope->base, rope->dims, i);
        if (divisors)
            freq[i] /= (double)divisors[i];
        if (rope->kind == SL_ROPE_KIND_YARN)
            freq[i] = yarn(rope, freq[i], i);
        else if (rope->kind == SL_ROPE_KIND_LLAMA3)
            freq[i] = llama3(rope, freq[i]);
    }
}

void sl_rope_sliding_frequencies(const sl_rope *rope, double *freq)
{
    for (uint32_t i = 0; i < rope->dims / 2; i++)
        freq[i] = plain(rope->sliding_base, rope->dims, i);
}

double sl_rope_magnitude(const sl_rope *rope)
{
    double magnitude = rope->magnitude;
    if (rope->kind == SL_ROPE_KIND_YARN && rope->factor > 1.0)
        magnitude *= 1.0 + 0.1 * sl_log64(rope->factor);
    return magnitude;
}

void sl_rope_turn(const sl_rope *rope, bool scaled, const double *freq, uint64_t pos, float *cos_out, float *sin_out)
{
    double at = (double)pos, magnitude = 1.0;
    if (scaled) {
        magnitude = sl_rope_magnitude(rope);
        if (rope->kind == SL_ROPE_KIND_LINEAR)
            at /= rope->factor;
    }
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        double s, c;
        sl_sincos64(at * freq[i], &s, &c);
        cos_out[i] = (float)(c * magnitude);
        sin_out[i] = (float)(s * magnitude);
    }
}

bool sl_rope_is_plain(const sl_rope *rope)
{
    return rope->kind == SL_ROPE_KIND_LINEAR && rope->magnitude == 1.0 && rope->sliding_base == 0.0;
}

uint64_t sl_rope_hash(const sl_rope *rope, const float *divisors)
{
    if (sl_rope_is_plain(rope))
        return divisors ? sl_hash(divisors, rope->dims / 2 * sizeof *divisors) : 0;
    const double numbers[] = {(double)rope->kind, (double)rope->dims, rope->base, rope->factor, rope->original,
                              rope->magnitude,    rope->fast,         rope->slow, rope->low,    rope->high,
                              rope->extrapolate,  rope->sliding_base};
    uint64_t both[2] = {sl_hash(numbers, sizeof numbers),
                        divisors ? sl_hash(divisors, rope->dims / 2 * sizeof *divisors) : 0};
    return sl_hash(both, sizeof both);
}
