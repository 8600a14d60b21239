/* The numbers of the format: value types and ggml's tensor types.
 * Source: ggml's gguf.md and the enum ggml_type of ggml.h; 4, 5, 31-33 and 36-38 were withdrawn there. */
#include "gguf/gguf_parse.h"

typedef struct tensor_type {
    const char *name;
    uint32_t n_elements, n_bytes; /* of one block */
} tensor_type;

static const tensor_type tensor_types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},      [3] = {"Q4_1", 32, 20},
    [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},      [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},
    [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},   [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},
    [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},
    [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},   [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
    [40] = {"NVFP4", 64, 36},    [41] = {"Q1_0", 128, 18},
};

static const tensor_type *tensor_type_of(uint32_t type)
{
    if (type >= sizeof tensor_types / sizeof *tensor_types || !tensor_types[type].name)
        return NULL;
    return &tensor_types[type];
}

const char *sl_ggml_type_name(uint32_t type)
{
    const tensor_type *found = tensor_type_of(type);
    return found ? found->name : NULL;
}

bool sl_ggml_type_block(uint32_t type, uint32_t *n_elements, uint32_t *n_bytes)
{
    const tensor_type *found = tensor_type_of(type);
    *n_elements = found ? found->n_elements : 0;
    *n_bytes = found ? found->n_bytes : 0;
    return found != NULL;
}

const char *sl_gguf_type_name(sl_gguf_type type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return (unsigned)type < sizeof names / sizeof *names ? names[type] : "unknown";
}

size_t sl_gguf_type_bytes(uint32_t type)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof sizes ? sizes[type] : 0;
}
