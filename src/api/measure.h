/* What an engine knows of its machine: measured once, when the first context asks. */
#ifndef SL_API_MEASURE_H
#define SL_API_MEASURE_H

#include "api/engine.h"

/* The user's folder for what one run leaves for the next: $XDG_CACHE_HOME/sluice, else ~/.cache/sluice (XDG Base
 * Directory Specification 0.8); NULL where neither variable holds an absolute path. Returns `out`. */
enum { SL_NOTES_DIR_BYTES = 4096 };
const char *sl_notes_dir(char out[SL_NOTES_DIR_BYTES]);

/* Kernel and memory rates for the model's shape and this cache type, in about a third of a second, inside what the
 * budget has left. SL_REFUSED: it has too little left. */
sl_status sl_engine_measure(sl_engine *engine, sl_kv_type type, sl_err *err) SL_CHECK;

/* What is known of the disk under `dir`; NULL: nothing. Borrowed until the next call. */
const sl_io_profile *sl_engine_find_io(sl_engine *engine, const char *dir);

/* Measures the disk under `dir`, two seconds, and remembers it, here and for later runs. A disk that cannot be measured
 * is a warning; the only error is SL_CANCELLED. */
sl_status sl_engine_probe_io(sl_engine *engine, const sl_context_options *options, const char *dir,
                             sl_err *err) SL_CHECK;

/* The reader's engine for an option. */
sl_io_engine sl_engine_io_of(sl_io io);

#endif
