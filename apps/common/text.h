/* Texts in and out of the command line: whole files, printed sizes and rates, the one error line.
 * Owns nothing. Refuses folders, missing files and texts beyond a limit, each by name.
 * Thread rule: every function may be called from any thread on its own data. */
#ifndef SL_TEXT_H
#define SL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sluice/status.h>

#if defined(__GNUC__)
#define SL_TEXT_PRINTF(fmt_idx, arg_idx) __attribute__((format(printf, fmt_idx, arg_idx)))
#define SL_TEXT_CHECK __attribute__((warn_unused_result))
#else
#define SL_TEXT_PRINTF(fmt_idx, arg_idx)
#define SL_TEXT_CHECK
#endif

#define SL_TEXT_NUMBER_BYTES 32 /* room for any formatted size, rate or time */

/* Fills `err` (may be NULL) and returns `status`. */
sl_status sl_text_error(sl_err *err, sl_status status, const char *fmt, ...) SL_TEXT_PRINTF(3, 4);

/* The whole file, or standard input for "-". `*out` ends with a NUL that `*out_bytes` does not count (the text
 * may hold others); owned by caller, free(). `stop` (may be NULL) is asked, with NULL, at every piece:
 * true ends with SL_CANCELLED. More than `limit_bytes`: SL_REFUSED. Folder,
 * missing or unreadable file, read error, no memory: SL_FAILED. */
sl_status sl_text_read(const char *path, uint64_t limit_bytes, bool (*stop)(void *arg), char **out, size_t *out_bytes,
                       sl_err *err) SL_TEXT_CHECK;

/* Bytes of the longest prefix that is valid UTF-8 (RFC 3629: no surrogates, no overlong forms, at most
 * U+10FFFF); n_bytes when all is. */
size_t sl_text_utf8_prefix(const char *text, size_t n_bytes);

/* "123 B", "1.50 KiB", "93.5 MiB": powers of 1024, three digits. Returns `out`. */
const char *sl_text_format_size(uint64_t bytes, char out[SL_TEXT_NUMBER_BYTES]);

/* "2.70 GB/s", "93.5 MB/s": powers of 1000, three digits; "-" for a rate that is no number. */
const char *sl_text_format_rate(double bytes_per_s, char out[SL_TEXT_NUMBER_BYTES]);

/* "0.42 s", "12.3 s", "3 m 05 s", "2 h 07 m"; "-" for what is negative or no number. */
const char *sl_text_format_time(double seconds, char out[SL_TEXT_NUMBER_BYTES]);

#endif
