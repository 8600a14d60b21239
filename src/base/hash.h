/* Checksums: XXH3, 64 bits (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0. */
#ifndef SL_HASH_H
#define SL_HASH_H

#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "base/mem.h"

static inline uint64_t sl_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

enum { SL_HASH_STATE_BYTES = 640 }; /* of a running checksum, about: the library allocates it itself */

/* A running checksum of no bytes yet, counted against the budget. Owned by caller. */
sl_status sl_hash_create(sl_budget *budget, XXH3_state_t **out, sl_err *err) SL_CHECK;
void sl_hash_destroy(sl_budget *budget, XXH3_state_t *state); /* NULL: nothing */

#endif
