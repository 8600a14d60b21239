/* Stop strings: where a text that comes byte by byte first ends with one of them.
 *
 * Owns: for each string how far the text's end agrees with its beginning (Knuth, Morris and Pratt, "Fast pattern
 * matching in strings", SIAM J. Comput. 6, 1977). Refuses: empty strings, text that is not UTF-8, more bytes than
 * SL_STOPS_BYTES. The answer does not depend on the pieces that the text came in. Thread rule: one thread at a time. */
#ifndef SL_STOPS_H
#define SL_STOPS_H

#include "base/mem.h"

enum { SL_STOPS_BYTES = 4096, SL_STOPS_MAX = 256 };

typedef struct sl_stops sl_stops;

/* SL_USAGE names the one that is refused, counting from 1. */
sl_status sl_stops_check(const char *const *texts, size_t n, sl_err *err) SL_CHECK;
/* texts [n], terminated, borrowed until destroy. */
sl_status sl_stops_create(const char *const *texts, size_t n, sl_budget *budget, sl_stops **out, sl_err *err) SL_CHECK;
void sl_stops_destroy(sl_stops *stops);
uint64_t sl_stops_bytes(void); /* at most; for the plan */

/* One byte more: how long the string is that ends with it, the longest if several do; 0: none does. After that it is
 * over. */
size_t sl_stops_take(sl_stops *stops, char byte);
/* How many of the last bytes may be the beginning of a stop string. */
size_t sl_stops_held(const sl_stops *stops);

#endif
