/* Checksums: XXH3, 64 bits (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0. */
#ifndef SL_HASH_H
#define SL_HASH_H

#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

static inline uint64_t sl_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

#endif
