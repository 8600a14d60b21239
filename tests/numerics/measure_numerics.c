#include "numerics/measure.h"

#include <math.h>
#include <stdio.h>

#include "base/cpu.h"
#include "base/fpenv.h"

enum { CHANNELS_PER_OUTLIER = 64, OUTLIER_CHANNEL = 17 };
static const float outlier_factor = 30.0f;

const char *measure_set_name(measure_set set)
{
    static const char *const names[MEASURE_SET_COUNT] = {"normal", "outliers", "real"};
    return names[set];
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Box and Muller's; u in (0, 1]. */
static float next_normal(uint64_t *state)
{
    double u = (double)((next_random(state) >> 11) + 1) * 0x1p-53;
    double turn = (double)(next_random(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * turn));
}

void measure_fill(float *rows, size_t n_rows, size_t n, measure_set set, uint64_t seed)
{
    uint64_t state = seed;
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < n; i++) {
            bool is_outlier = set == MEASURE_SET_OUTLIER && i % CHANNELS_PER_OUTLIER == OUTLIER_CHANNEL;
            rows[r * n + i] = (is_outlier ? outlier_factor : 1.0f) * next_normal(&state);
        }
}

void measure_add(measure_sum *sum, const float *got, const double *exact, const double *given, const double *bound,
                 size_t n)
{
    double error2 = 0.0, size2 = 0.0;
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - exact[i]);
        error2 += error * error;
        size2 += exact[i] * exact[i];
        if (given)
            sum->rounding2 += ((double)got[i] - given[i]) * ((double)got[i] - given[i]);
        if (error > 0.0)
            sum->worst_of_bound = fmax(sum->worst_of_bound, error / bound[i]);
    }
    sum->error2 += error2;
    sum->size2 += size2;
    if (size2 > 0.0)
        sum->worst_row = fmax(sum->worst_row, sqrt(error2 / size2));
}

void measure_print(const char *rule, const char *data, const measure_sum *sum)
{
    char rounding[32] = "–";
    if (sum->rounding2 > 0.0)
        snprintf(rounding, sizeof rounding, "%.1e", sqrt(sum->rounding2 / sum->size2));
    printf("| %s | %s | %.1e | %.1e | %.2g | %s |\n", rule, data, sqrt(sum->error2 / sum->size2), sum->worst_row,
           sum->worst_of_bound, rounding);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static real_rows real;
    sl_kernels kernels;
    sl_kernels_init(&kernels, sl_cpu_best());
    if (argc != 1 && argc != 3) {
        fprintf(stderr, "usage: measure_numerics [MODEL.gguf TEXT]\n");
        return 2;
    }
    sl_fpenv saved = sl_fpenv_enter();
    bool has_real = argc == 3;
    if (has_real && !real_rows_make(argv[1], argv[2], &kernels, &real))
        return 1;
    printf("| rule | data | relative rms | worst row | of the bound | with the input's rounding |\n"
           "|---|---|---|---|---|---|\n");
    measure_attention(&kernels, has_real ? &real : NULL);
    measure_projections(&kernels, has_real ? &real : NULL);
    measure_vectors(&kernels, has_real ? &real : NULL);
    sl_fpenv_leave(saved);
    return 0;
}
