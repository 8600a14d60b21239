/* Feeds every file of the corpus directory FUZZ_CORPUS to a fuzz target, whole and cut in the middle: what the fuzzer
 * once reached stays covered by the normal tests. A target that finds a fault aborts; a missing corpus fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "fuzz/fuzz.h"

/* A heap block of the exact size lets the address sanitizer see a read past the end. */
static void feed(const uint8_t *from, size_t size)
{
    uint8_t *data = malloc(size > 0 ? size : 1);
    assert_non_null(data);
    for (size_t i = 0; i < size; i++)
        data[i] = from[i];
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

static bool feed_file(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size > 0 ? size : 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, size, file), size);
    fclose(file);
    feed(data, size);
    feed(data, size / 2);
    free(data);
    return true;
}

static void test_corpus(void **state)
{
    (void)state;
    DIR *dir = opendir(FUZZ_CORPUS);
    assert_non_null(dir);
    int n_files = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        char path[4096];
        int n = snprintf(path, sizeof path, "%s/%s", FUZZ_CORPUS, entry->d_name);
        assert_true(n > 0 && (size_t)n < sizeof path);
        n_files += feed_file(path);
    }
    closedir(dir);
    print_message("%d files replayed\n", n_files);
    assert_true(n_files > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_corpus)};
    return cmocka_run_group_tests_name("fuzz corpus", tests, NULL, NULL);
}
