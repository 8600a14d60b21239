/* libFuzzer's entry point (https://llvm.org/docs/LibFuzzer.html): each fuzz_*.c defines it; replay.c or libFuzzer
 * calls it. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
