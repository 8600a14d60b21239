#include "model/arch.h"

#include <string.h>

/* X(name, the row's other fields); sources: the models' papers and reference code, and the tensor and key names that
 * llama.cpp's converter writes. */
#define SL_ARCHS(X)                                                                                                    \
    X(llama, .flags = SL_ARCH_BIASES | SL_ARCH_SLIDES | SL_ARCH_MAY_MIX)                                               \
    X(qwen2, .flags = SL_ARCH_NEOX | SL_ARCH_QKV_BIAS)                                                                 \
    X(qwen3, .flags = SL_ARCH_NEOX | SL_ARCH_QK_NORM)                                                                  \
    X(qwen3moe, .flags = SL_ARCH_NEOX | SL_ARCH_QK_NORM | SL_ARCH_MIXES)                                               \
    X(phi3, .flags = SL_ARCH_NEOX | SL_ARCH_FUSED_QKV | SL_ARCH_FUSED_GATE_UP | SL_ARCH_SLIDES | SL_ARCH_LONG_FACTORS) \
    X(gemma2, .flags = SL_ARCH_NEOX | SL_ARCH_GELU | SL_ARCH_POST_NORMS | SL_ARCH_EMBD_SCALE | SL_ARCH_SLIDES,         \
      .sliding_period = 2, .sliding_default = 4096, .wide_scale_layers = 46, .attn_softcap = 50.0f,                    \
      .logit_softcap = 30.0f)                                                                                          \
    X(gemma3,                                                                                                          \
      .flags = SL_ARCH_NEOX | SL_ARCH_GELU | SL_ARCH_POST_NORMS | SL_ARCH_EMBD_SCALE | SL_ARCH_SLIDES |                \
               SL_ARCH_QK_NORM,                                                                                        \
      .sliding_period = 6, .sliding_rope_base = 10000.0, .wide_scale_layers = 62)                                      \
    X(smollm3, .no_rope_period = 4)                                                                                    \
    X(glm4, .flags = SL_ARCH_BIASES | SL_ARCH_FUSED_GATE_UP | SL_ARCH_POST_NORMS)

#define ROW(id, ...) {.name = #id, __VA_ARGS__},
static const sl_arch archs[] = {SL_ARCHS(ROW)};
#undef ROW

const sl_arch *sl_arch_find(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strlen(archs[i].name) == size && memcmp(archs[i].name, name, size) == 0)
            return &archs[i];
    return NULL;
}

const char *sl_arch_names(void)
{
#define NAME(id, ...) ", " #id
    return &(SL_ARCHS(NAME))[2];
#undef NAME
}
