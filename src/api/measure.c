#include "api/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/rates.h"

/* Of one measurement. There are at most 1 + 5 + 3 for each weight type. */
static const double measure_s = 0.03;

static sl_status measure_attention(sl_engine *engine, const sl_rates_machine *machine, sl_kv_type type, sl_err *err)
{
    const sl_hparams *hp = &engine->hp;
    sl_status status = SL_OK;
    double keys[SL_ATTN_POINTS] = {0};
    for (size_t i = 0; status == SL_OK && i < SL_ATTN_POINTS; i++) {
        const sl_rates_attn shape = {type, hp->n_heads, hp->n_kv_heads, hp->head_dim, sl_attn_point_rows[i]};
        status = sl_rates_attention(machine, &shape, &keys[i], err);
    }
    if (status == SL_OK)
        memcpy(engine->rates.keys[type], keys, sizeof keys);
    return status;
}

static sl_status measure_projections(sl_engine *engine, const sl_rates_machine *machine, sl_err *err)
{
    sl_status status = SL_OK;
    for (size_t type = 0; status == SL_OK && type < SL_WTYPE_COUNT; type++) {
        double madds[SL_GEMM_POINTS] = {0};
        if (engine->work.madds[type] <= 0.0 && type != engine->work.logit_type)
            continue;
        for (size_t i = 0; status == SL_OK && i < SL_GEMM_POINTS; i++)
            status = sl_rates_projection(machine, (sl_wtype)type, sl_gemm_point_rows[i], &madds[i], err);
        if (status == SL_OK)
            memcpy(engine->rates.madds[type], madds, sizeof madds);
    }
    return status;
}

sl_status sl_engine_measure(sl_engine *engine, sl_kv_type type, sl_err *err)
{
    const sl_rates_machine machine = {&engine->kernels, engine->pool, &engine->budget, measure_s};
    sl_status status = SL_OK;
    if (engine->rates.memory <= 0.0) {
        status = measure_projections(engine, &machine, err);
        if (status == SL_OK)
            status = sl_rates_memory(&machine, &engine->rates.memory, err);
    }
    if (status == SL_OK && engine->rates.keys[type][0] <= 0.0)
        status = measure_attention(engine, &machine, type, err);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- the disk */

sl_io_engine sl_engine_io_of(sl_io io)
{
    switch (io) {
    case SL_IO_URING:
        return SL_IO_ENGINE_URING;
    case SL_IO_POOL:
        return SL_IO_ENGINE_POOL;
    case SL_IO_AUTO:
    case SL_IO_BUFFERED:
        break;
    }
    return SL_IO_ENGINE_AUTO;
}

const char *sl_notes_dir(char out[SL_NOTES_DIR_BYTES])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && cache[0] == '/')
        length = snprintf(out, SL_NOTES_DIR_BYTES, "%s/sluice", cache);
    else if (home && home[0] == '/')
        length = snprintf(out, SL_NOTES_DIR_BYTES, "%s/.cache/sluice", home);
    return length > 0 && length < SL_NOTES_DIR_BYTES ? out : NULL;
}

static bool has_dir(const sl_engine *engine, const char *dir)
{
    return engine->io.dir && strcmp(engine->io.dir, dir) == 0;
}

/* Forgets another folder; SL_REFUSED when not even the name fits. */
static sl_status set_dir(sl_engine *engine, const char *dir, sl_err *err)
{
    if (has_dir(engine, dir))
        return SL_OK;
    sl_mem_free(&engine->budget, engine->io.dir);
    engine->io = (sl_engine_io){0};
    size_t bytes = strlen(dir) + 1;
    sl_status status = sl_mem_new(&engine->budget, bytes, 1, "directory name", &engine->io.dir, err);
    if (status == SL_OK)
        memcpy(engine->io.dir, dir, bytes);
    return status;
}

const sl_io_profile *sl_engine_find_io(sl_engine *engine, const char *dir)
{
    char notes[SL_NOTES_DIR_BYTES];
    if (!has_dir(engine, dir)) {
        if (set_dir(engine, dir, NULL) != SL_OK)
            return NULL;
        engine->io.is_known = sl_ioprobe_find(sl_notes_dir(notes), dir, &engine->io.profile);
    }
    return engine->io.is_known ? &engine->io.profile : NULL;
}

/* With little memory the ladder is cut short, and another way of reading has other rates: good for this run only. */
static void remember(sl_engine *engine, const char *dir, size_t memory_bytes, const sl_context_options *options)
{
    bool is_usual = options->io == SL_IO_AUTO, is_asked = options->io_probe;
    enum { WORTH_BYTES = 32 << 20 };
    char notes[SL_NOTES_DIR_BYTES];
    sl_err err = {SL_OK, ""};
    const sl_io_profile *p = &engine->io.profile;
    sl_log_write(&engine->log, SL_LOG_LEVEL_INFO,
                 "%s: reads of %zu KiB, %zu MiB in flight, %.0f MB/s; writes %.0f MB/s%s", dir, p->read_bytes >> 10,
                 p->in_flight_bytes >> 20, p->read_rate / 1e6, p->write_rate / 1e6, p->is_direct ? "" : "; buffered");
    const char *why = !p->is_steady              ? "the rounds disagree, others use it"
                      : !is_usual                ? "--io chose a way that is not the usual one"
                      : memory_bytes < WORTH_BYTES ? "the budget leaves too little memory for its best"
                                                 : NULL;
    if (!why && sl_ioprobe_save(sl_notes_dir(notes), dir, p, &err) != SL_OK)
        why = err.text;
    if (why)
        sl_log_write(&engine->log, is_asked ? SL_LOG_LEVEL_WARNING : SL_LOG_LEVEL_INFO,
                     "%s: what was measured of the disk is not remembered: %s", dir, why);
}

sl_status sl_engine_probe_io(sl_engine *engine, const sl_context_options *options, const char *dir, sl_err *err)
{
    enum { MOST_BYTES = 64 << 20 };
    sl_err cause = {SL_OK, ""};
    uint64_t half = sl_budget_left(&engine->budget) / 2;
    const sl_ioprobe_options probe = {
        .dir = dir,
        .allow_ram_dir = options->allow_ram_dir,
        .memory_bytes = half < MOST_BYTES ? (size_t)half : MOST_BYTES,
        .engine = sl_engine_io_of(options->io),
        .budget = &engine->budget,
        .log = engine->log,
        .stop = options->stop,
        .arg = options->arg,
    };
    sl_status status = set_dir(engine, dir, &cause);
    sl_io_profile profile;
    engine->io.was_probed = true;
    if (status == SL_OK)
        status = sl_ioprobe_run(&probe, &profile, &cause);
    if (status == SL_CANCELLED)
        return sl_err_set(err, status, "%s", cause.text);
    if (status != SL_OK) {
        sl_log_write(&engine->log, SL_LOG_LEVEL_WARNING, "the disk was not measured: %s", cause.text);
        return SL_OK;
    }
    engine->io.profile = profile;
    engine->io.is_known = true;
    remember(engine, dir, probe.memory_bytes, options);
    return SL_OK;
}
