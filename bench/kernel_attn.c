/* Attention over contexts in memory, through the path that a model's pass takes (src/attn/attn.c). */
#include "bench/kernel_case.h"

static sl_status run_attention(bench_case *c, sl_err *err)
{
    bench_pass pass;
    return bench_cache_attend(&c->cache, c->spec.rows, &pass, err);
}

sl_status bench_attn_open(bench_case *c, sl_err *err)
{
    const bench_case_spec *s = &c->spec;
    bench_machine *m = c->m;
    const sl_kernels *kernels = &m->kernels;
    bool is_f16 = s->kv_type == SL_KV_TYPE_F16;
    sl_status status =
        bench_cache_init(&c->cache, m, s->keys, s->rows, (int64_t)bench_kv_bytes(m, s->keys), err);
    if (status == SL_REFUSED)
        return sl_err_set(err, status, "--keys %llu: no memory for K and V of %u layers, %u heads of %u",
                          (unsigned long long)s->keys, (unsigned)s->n_layers, s->n_kv_heads, s->head_dim);
    if (status == SL_OK)
        status = bench_cache_fill(&c->cache, err);
    c->run = run_attention;
    c->calls_per_run = s->n_layers;
    c->operations = 4.0 * (double)s->rows * s->n_heads * s->head_dim * (double)s->keys;
    c->bytes = (double)bench_kv_bytes(m, s->keys) / (double)s->n_layers;
    c->compute = is_f16 ? BENCH_PEAK_FMA : BENCH_PEAK_INT16;
    c->memory = BENCH_PEAK_MEMORY;
    sl_cpu_level level = kernels->level[is_f16 ? SL_KERNEL_ENTRY_attn_tile_f16 : SL_KERNEL_ENTRY_attn_tile_q8];
    c->row.name = "attention";
    c->row.level = sl_cpu_level_name(level);
    c->row.type = is_f16 ? "f16" : "q8_0";
    return status;
}
